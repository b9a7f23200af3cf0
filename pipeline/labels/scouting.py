"""A scout runs ahead of a walk: it forces every draft token that it meets and records where it did so.

Strict decoding up to a mismatch, then the draft token instead of the target's, and so on from there. As long as no
forced token does harm, this is the text of the walk itself (pipeline/labels/mining.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.request.rows import Row
from gistgate.rules.base import allowed
from gistgate.rules.exact import Exact
from pipeline.labels.mismatches import MismatchRecorder

FAR_ENOUGH = "far enough"
"""Finish of a scout that has forced as many tokens as it was asked for."""


@dataclass(frozen=True)
class Forced(Exact):
    """Strict up to the first mismatch of a block, where the draft token stands in for the target's own."""

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        own_B = super().own(block, length_B)
        num = block.draft_ids.shape[1]
        if not num:
            return own_B
        at_B1 = length_B.clamp_max(num - 1)[:, None]
        forced_B = allowed(block).gather(1, at_B1).squeeze(1) & (length_B < num)
        return torch.where(forced_B, block.draft_ids.gather(1, at_B1).squeeze(1), own_B)


class Scout(MismatchRecorder):
    """Records the mismatches of scouts and ends each of them once it has met enough."""

    def __init__(self, block: int, enough: Sequence[int]) -> None:
        """`block`: K of the decoder; `enough`: for each scout the number of mismatches."""
        super().__init__(block)
        self.enough = enough
        self._met: dict[int, int] = {}

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        known = len(self._tables)
        super().__call__(block, acceptance, rows)
        for table in self._tables[known:]:
            for row in table["row"].tolist():  # a round meets one mismatch of a row at most: there it ends
                self._met[row] = self._met.get(row, 0) + 1

    def is_far_enough(self, row: Row) -> str | None:
        """For `Decoder.resume`: whether this scout has met its number of mismatches."""
        return FAR_ENOUGH if self._met.get(row.index, 0) >= self.enough[row.index] else None
