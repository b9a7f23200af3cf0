"""The lossless reference: token-wise speculative sampling (arXiv 2211.17192)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class Exact(LooseRule):
    """Accept while the draft token equals the target's argmax (greedy) or while u <= p(x) / q(x) (sampled)."""

    id: ClassVar[str] = "exact"
    knob: ClassVar[str | None] = None
    looser: ClassVar[Literal["up", "down"]] = "up"

    def accept(self, block: Block, state: State) -> Tensor:
        return block.strict
