"""The texts of a batch while they are being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gistgate.forward.cache import RowCache
from gistgate.request.statistics import Statistics


@dataclass
class Row:
    """One text: prompt, answer so far, and what was counted."""

    index: int
    """Place of its prompt in the request."""
    text: list[int]
    """Prompt and answer, as token ids."""
    prompt_length: int
    """Tokens of `text` that are prompt."""
    seed: int = 0
    """Seed of the row's own random numbers."""
    reasons: list[int] = field(default_factory=list)
    """Reason of every answer token."""
    finish: str | None = None
    """Why the answer ended; None while it goes on."""
    statistics: Statistics = field(default_factory=Statistics)
    generator: torch.Generator | None = None
    cost: float | None = None
    """What a round costs this request right now, 0 to 1; None where nobody said."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What rules and guards remember about this request, by their ids."""

    @property
    def answer(self) -> list[int]:
        return self.text[self.prompt_length :]

    def uniforms(self, num: int) -> Tensor:
        """`num` fresh numbers in (0, 1), the same for the same seed whatever the neighbours do."""
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.rand(num, generator=self.generator, dtype=torch.float64)
        return drawn.clamp(1e-12, 1 - 1e-12)


@dataclass(frozen=True)
class Generation:
    """One finished answer."""

    ids: list[int]
    """New token ids, cut at the stop; an eos stays."""
    reasons: list[int]
    """Reason of every token of `ids` (gistgate.block.Reason)."""
    finish: str
    """"eos", "stop" (a stop string) or "length"."""
    statistics: Statistics
    """What was counted."""


@dataclass(frozen=True)
class Memory:
    """What both models remember of one text: lets an answer be continued from any earlier token."""

    text: list[int]
    """Prompt and answer, as token ids."""
    target: RowCache
    """The target's keys and values of a prefix of `text`."""
    draft: RowCache
    """The drafter's; empty when it keeps none."""

    @property
    def num_bytes(self) -> int:
        """Memory held by both, in bytes."""
        return self.target.num_bytes + self.draft.num_bytes


def finished(row: Row) -> Generation:
    """The row as an answer."""
    assert row.finish is not None
    return Generation(row.answer, row.reasons, row.finish, row.statistics)


def texts_of(rows: Sequence[Row]) -> list[list[int]]:
    """The texts of all rows."""
    return [row.text for row in rows]


def spend(rows: Sequence[Row], **seconds: float) -> None:
    """Share wall-clock seconds by part evenly among the rows of a batch."""
    for row in rows:
        for part, spent in seconds.items():
            row.statistics.spend(part, spent / len(rows))


def count_notes(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Count what a drafter noted of each row; no notes at all say nothing."""
    for row, note in zip(rows, notes, strict=False):
        if note:
            row.statistics.count(note)
