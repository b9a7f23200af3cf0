"""Accept or refuse a whole segment (arXiv 2602.03708).

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, own_token

NO_SEGMENT = -1.0
"""In place of an opinion where there is no finished segment; 0 is an opinion."""


@dataclass(frozen=True)
class SegmentRule(LooseRule):
    """Accept a segment whose opinion reaches a threshold: the form that can be certified."""

    threshold: float = 0.9
    """Least opinion of an accepted segment; 1 leaves refused segments to a token gate, above 1 refuses all."""
    shortcut: Literal["none", "top2"] = "none"
    """Whether a segment passes when all its tokens are among the target's two most probable."""
    partial: bool = True
    """Of a refused segment the tokens up to the first refused one stay; False drops all of it."""
    ratio: float = 1.0
    """Inside a refused segment a token passes with p(x) / p(t*) of at least this; 1 is strict."""
    id: ClassVar[str] = "segment"
    knob: ClassVar[str | None] = "threshold"
    looser: ClassVar[Literal["up", "down"]] = "down"
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})
    grid: ClassVar[tuple[float, ...]] = (0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise UserError(f"segment: threshold is {self.threshold}, but it cannot be negative. Above 1 is strict.")
        if self.shortcut not in ("none", "top2"):
            raise UserError(f"segment: there is no shortcut '{self.shortcut}'. Use none or top2.")
        if not 0 < self.ratio <= 1:
            raise UserError(f"segment: ratio is {self.ratio}, but it lies in (0, 1]. 1 is strict.")
        if self.ratio < 1 and not self.partial:
            raise UserError("segment: ratio lets tokens of a refused segment stay, partial=False none. Leave one away.")

    @property
    def superset(self) -> bool:  # type: ignore[override]
        return self.partial

    def accept(self, block: Block, state: State) -> Tensor:
        if block.gate_probs is None:
            raise UserError("segment judges by an opinion on the segment, and none was given. Use segment_decoder().")
        if not block.draft_ids.shape[1]:
            return block.valid
        stays_BK = self.passes(block, block.gate_probs)
        if self.ratio == 1:
            return stays_BK
        gap_BK = block.draft_logprob - block.top_logprob[:, :-1]
        return stays_BK | (gap_BK >= math.log(self.ratio))

    def passes(self, block: Block, opinion_BK: Tensor) -> Tensor:
        """Where opinion or shortcut lets tokens stay [B, K]: everywhere in a row, or where a token gate is sure.

        `opinion_BK` may be one column.
        """
        stays_BK = self._stays(block, opinion_BK)
        if self.shortcut == "none":
            return stays_BK
        finished_B = ((opinion_BK >= 0) | ~block.valid).all(-1)
        among_B = ((block.draft_rank < 2) | ~block.valid).all(-1)
        return stays_BK | (finished_B & among_B)[:, None]

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        if self.partial or block.greedy or not block.draft_ids.shape[1]:
            return own_token(block, length_B)
        # What was refused as a whole was never tested against p token by token: p itself follows, not the residual.
        tested_BK = block.valid & self.accept(block, {})[:, :1]
        return own_token(replace(block, valid=tested_BK), length_B)

    def _stays(self, block: Block, opinion_BK: Tensor) -> Tensor:
        """Where the opinion is good enough [B, K]; nowhere for NO_SEGMENT, since the threshold is not negative."""
        return opinion_BK >= self.threshold


@dataclass(frozen=True)
class SegmentDraw(SegmentRule):
    """Accept with the opinion as probability, reproducibly for the request's seed; `threshold` plays no part.

    The released code does so with the ratio of two probes, and takes the shortcut first.
    """

    id: ClassVar[str] = "segment-draw"
    knob: ClassVar[str | None] = None
    grid: ClassVar[tuple[float, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset({"gate", "uniforms"})

    def _stays(self, block: Block, opinion_BK: Tensor) -> Tensor:
        assert block.uniforms is not None
        # The first position's number also decides its strict test; the fractional part of a multiple is fresh enough.
        return (block.uniforms[:, :1] * 4096.0) % 1.0 < opinion_BK
