"""Reading prompts into memory of a fixed shape: by programs of one stretch, or by the model as it is.

Axis letters: B rows of the memory, N tokens of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.decoding.engines.program import HEAVY, Program, num_bytes
from gistgate.decoding.engines.slots import attending_to_slots, forward
from gistgate.decoding.engines.store import store_of

STRETCH = {"cpu": 64}
"""Prompt tokens per program, by device type; elsewhere `LONG_STRETCH`."""
LONG_STRETCH = 256
WIDE_STRETCH, FEWEST = 512, 16
"""Most and fewest prompt tokens of a row that a heavy model reads at once."""
MOST_SCORES = 1 << 26
"""Scores of attention that one layer may have at once, as far as `FEWEST` allows: ten bytes each, with their masks."""


@dataclass(frozen=True)
class Prefill:
    """Reads a stretch of every prompt."""

    model: PreTrainedModel

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, ids [B, N], number of the first [B, 1] -> something of no interest."""
        *memory, ids, first = tensors
        positions = first + torch.arange(ids.shape[1], device=ids.device)
        return (forward(self.model, memory, ids, positions, 1)[:, -1, 0],)


def stretch_of(model: PreTrainedModel) -> int:
    """Prompt tokens that one program reads."""
    return STRETCH.get(model.device.type, LONG_STRETCH)


def reads_alone(model: PreTrainedModel) -> bool:
    """Whether prompts go through the model as it is.

    A heavy model on a processor spends its time in products of many rows, which no program makes faster, and a program
    would read whole stretches where the prompt ends earlier.
    """
    return model.device.type == "cpu" and num_bytes([*model.parameters(), *model.buffers()]) >= HEAVY


class PromptReader:
    """Reads the prompts of a batch into the memory of one model."""

    def __init__(self, model: PreTrainedModel, memory: Sequence[Tensor]) -> None:
        """Build the program where there is one.

        Raises:
            UnsupportedError: the model cannot become a program.
        """
        self.model, self.memory, self.whole = model, memory, not reads_alone(model)
        self.width = stretch_of(model)
        self.call: Program = Prefill(model)
        if self.whole:
            batch, _, slots, _ = memory[0].shape
            ids = torch.zeros(batch, self.width, dtype=torch.long, device=model.device)
            key, inputs = (batch, slots, "prefill", self.width), [ids, ids[:, :1].clone()]
            with attending_to_slots(model):
                self.call = store_of(model).program(key, self.call, memory, inputs)

    def read(self, texts: Sequence[list[int]]) -> None:
        """Read one text per row from its beginning.

        What is read beyond the end of a row is overwritten before anything looks at it.
        """
        longest, batch = max(map(len, texts)), self.memory[0].shape[0] if self.whole else len(texts)
        ids = torch.zeros(batch, rounded_up(longest, self.width) if self.whole else longest, dtype=torch.long)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        ids, start = ids.to(self.model.device), 0
        with attending_to_slots(self.model):
            while start < longest:
                end = start + (self.width if self.whole else self._fitting(batch, longest))
                # Without a program nothing is read but the slots that the rows have used so far.
                memory = self.memory if self.whole else [kept[:batch, :, :end] for kept in self.memory]
                self.call(*memory, ids[:, start:end], torch.full((batch, 1), start, device=self.model.device))
                start = end

    def _fitting(self, rows: int, slots: int) -> int:
        heads = int(self.model.config.get_text_config().num_attention_heads)
        return min(WIDE_STRETCH, max(FEWEST, MOST_SCORES // (rows * heads * slots)))


def rounded_up(number: int, width: int) -> int:
    """The next multiple of `width`."""
    return -(-number // width) * width
