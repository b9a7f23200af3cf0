"""The device's share of a round as pure functions of tensors: draft K tokens; verify, judge and
accept them.

Axis letters: B rows, K drafted tokens, V vocabulary, M memory tensors of a model. `feed [B, 5]` is
    what the host says about each row: its last two tokens, the number of the last one, how many
    drafted tokens there is room for, and 1 where the answer begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.compiled.memory import attending_to_slots, forward, program_of
from gistgate.compiled.program import HEAVY, Program, num_bytes
from gistgate.core.block import Block, Sampling, draw
from gistgate.core.features import tap
from gistgate.core.parts import DecoderParts
from gistgate.core.reader import anew
from gistgate.core.rule import settle
from gistgate.drafters.text import right_padded

FEED = 5
"""Columns of `feed`."""
MOST_LAYERS = 64
"""Most layers of one program. Compiling takes about a second for each, and a model with so many
layers in a block spends so long in every step that calling a program for each costs nothing. On a
GPU one graph replays all steps either way."""


@dataclass(frozen=True)
class DraftSteps:
    """The steps in which a model drafts a block."""

    model: PreTrainedModel
    vocabulary: int
    sampling: Sampling
    gives_q: bool
    """Whether q is asked for; sampled drafts have it always."""
    draws: bool
    """Whether random numbers are read."""

    def token(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, ids [B, N] and their numbers, uniforms [B, 1 or 0] -> the next x [B], q [B, V]
        ([B, 0]: unasked).
        """
        *memory, ids, positions, uniform = tensors
        z_BNV = forward(self.model, memory, ids, positions, 1)
        z_BV = self.sampling.logits(z_BNV[:, -1, : self.vocabulary])
        if not self.gives_q:
            return z_BV.argmax(-1), z_BV[:, :0]
        q_BV = z_BV.softmax(-1)
        if self.sampling.greedy:
            return z_BV.argmax(-1), q_BV
        return draw(q_BV, uniform[:, 0]), q_BV

    def program(self, num: int, memory: Sequence[Tensor]) -> Program:
        """`draft_steps` of `num` tokens as a program."""
        about = (self.vocabulary, self.sampling, self.gives_q, self.draws)
        ids = memory[0].new_zeros(len(memory[0]), FEED, dtype=torch.long)
        uniforms = ids.new_zeros(len(ids), num if self.draws else 0, dtype=torch.float64)

        def step(tokens: int) -> Program:
            first = anew(ids[:, :tokens])
            inputs = [first, first.clone(), anew(uniforms[:, :1])]
            key = ("draft token", tokens, *about)
            return program_of(self.model, key, self.token, memory, inputs, replays=False)

        is_whole = num * self.model.config.get_text_config().num_hidden_layers <= MOST_LAYERS
        programs = (self.token, self.token) if is_whole else (step(2), step(1))
        steps = partial(draft_steps, num, *programs)
        key = ("draft", num, *about)
        return program_of(self.model, key, steps, memory, [ids, uniforms], builds=is_whole)


def draft_steps(num: int, first: Program, later: Program, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Memory M, feed [B, 5], uniforms [B, K] -> x [B, K], q [B, K, V]; the `first` of `num` steps
    reads two tokens.
    """
    *memory, feed, uniforms = tensors
    # The last drafted token of a block is never read, so after a whole block two tokens are new.
    # Reading both always keeps the shape, and reading one again changes nothing.
    ids = anew(feed[:, :2])
    positions = feed[:, 2:3] + torch.arange(-1, 1, device=feed.device)
    drawn = []
    q = []
    for step in range(num):
        program = later if step else first
        x_B, q_BV = program(*memory, ids, positions, anew(uniforms[:, step : step + 1]))
        drawn.append(x_B)
        q.append(q_BV)
        ids = x_B[:, None]
        positions = positions[:, -1:] + 1
    return torch.stack(drawn, 1), torch.stack(q, 1)


def verify_round(
    parts: DecoderParts,
    sampling: Sampling,
    protocol: Tensor,
    *tensors: Tensor,
) -> tuple[Tensor, ...]:
    """Memory M, feed [B, 5], x [B, K], valid [B, K], q [B, K, V or 0], uniforms [B, K + 1] -> [B,
    2K + 2].

    The columns: K draft tokens, K reasons, the accepted length, the target's own token.
    """
    *memory, feed, x_BK, valid_BK, q_BKV, uniforms = tensors
    _, last_B1, at_B1, room_B1, begins_B1 = feed.split(1, dim=1)
    ids = torch.cat([last_B1, x_BK], 1)
    num = ids.shape[1]
    steps = torch.arange(num, device=ids.device)
    with tap(parts.target, parts.layers) as states:
        z = forward(parts.target, memory, ids, at_B1 + steps, num)
    block = Block(
        x_BK,
        valid_BK & (steps[:-1] < room_B1),
        sampling.logits(z[..., : parts.vocabulary]),
        q=q_BKV if q_BKV.shape[-1] else None,
        hidden={layer: state[:, -num:] for layer, state in states.items()},
        uniforms=uniforms if uniforms.shape[1] else None,
        greedy=sampling.greedy,
        protocol=protocol,
        begins=begins_B1[:, 0] > 0,
    )
    if parts.judged:
        block = block.with_gate(parts.gate)
    acceptance = settle(parts.rule, block)
    ends = torch.stack([acceptance.length, acceptance.own_ids], 1)
    return (torch.cat([x_BK, acceptance.reasons, ends], 1),)


STRETCH = {"cpu": 64}
"""Prompt tokens that one program reads, by device type; elsewhere `LONG_STRETCH`."""
LONG_STRETCH = 256
WIDE_STRETCH = 512
"""Most prompt tokens of a row that a heavy model reads at once."""
FEWEST = 16
"""Fewest of them."""
MOST_SCORES = 1 << 26
"""Scores of attention that one layer may have at once, as far as `FEWEST` allows: ten bytes each,
with their masks."""


def prefill(model: PreTrainedModel, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Memory M, a stretch of prompts [B, N], number of its first tokens [B, 1] -> something of no
    interest.
    """
    *memory, ids, first = tensors
    positions = first + torch.arange(ids.shape[1], device=ids.device)
    return (forward(model, memory, ids, positions, 1)[:, -1, 0],)


def stretch_of(model: PreTrainedModel) -> int:
    """Prompt tokens that one program reads."""
    return STRETCH.get(model.device.type, LONG_STRETCH)


class PromptReader:
    """Reads the prompts of a batch into the memory of one model; no program makes a heavy model
    faster at that.
    """

    def __init__(self, model: PreTrainedModel, memory: Sequence[Tensor]) -> None:
        self.model = model
        self.memory = memory
        self.width = stretch_of(model)
        self.is_light = num_bytes([*model.parameters(), *model.buffers()]) < HEAVY
        self.program: Program = partial(prefill, model)
        if self.is_light:
            ids = memory[0].new_zeros(len(memory[0]), self.width, dtype=torch.long)
            inputs = [ids, anew(ids[:, :1])]
            self.program = program_of(model, ("prefill", self.width), self.program, memory, inputs)

    def read(self, texts: Sequence[list[int]]) -> None:
        """Read one text per row; what is read beyond its end is overwritten before anything looks
        at it.
        """
        longest = max(map(len, texts))
        if self.is_light:
            width = self.width
            empty: list[list[int]] = [[]] * (len(self.memory[0]) - len(texts))
            ids = right_padded([*texts, *empty], rounded_up(longest, width))
        else:
            heads = int(self.model.config.get_text_config().num_attention_heads)
            fitting = MOST_SCORES // (len(texts) * heads * max(longest, 1))
            width = min(WIDE_STRETCH, max(FEWEST, fitting))
            ids = right_padded(texts, longest)
        ids = ids.to(self.model.device)
        memory = self.memory
        with attending_to_slots(self.model):
            for start in range(0, longest, width):
                if not self.is_light:  # nothing is read but the slots that were used so far
                    memory = [half[: len(ids), :, : start + width] for half in self.memory]
                first = ids.new_full((len(ids), 1), start)
                self.program(*memory, anew(ids[:, start : start + width]), first)


def rounded_up(number: int, width: int) -> int:
    """The next multiple of `width`."""
    return -(-number // width) * width
