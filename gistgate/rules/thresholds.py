"""Controls that look at one number of the target's row: probability, ratio, rank. No paper claims them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


def log_of_threshold(rule_id: str, r: float) -> float:
    """ln r, with r checked to lie in (0, 1]."""
    if not 0 < r <= 1:
        raise UserError(f"{rule_id}: r is {r}, but a probability threshold lies in (0, 1]. 1 is strict.")
    return math.log(r)


@dataclass(frozen=True)
class Prob(LooseRule):
    """Accept where p(x) >= r."""

    r: float = 0.1
    """Smallest target probability of a tolerated draft token."""
    id: ClassVar[str] = "prob"
    knob: ClassVar[str | None] = "r"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001)

    def __post_init__(self) -> None:
        log_of_threshold(self.id, self.r)

    def accept(self, block: Block, state: State) -> Tensor:
        return block.draft_logprob >= log_of_threshold(self.id, self.r)


@dataclass(frozen=True)
class ProbRatio(LooseRule):
    """Accept where p(x) / p(t*) >= r."""

    r: float = 0.3
    """Smallest ratio of the draft token's probability to the best token's."""
    id: ClassVar[str] = "prob-ratio"
    knob: ClassVar[str | None] = "r"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002)

    def __post_init__(self) -> None:
        log_of_threshold(self.id, self.r)

    def accept(self, block: Block, state: State) -> Tensor:
        if self.r == 1:  # neither a tie with t* nor, when sampling, t* itself is a reason to overrule the strict test
            return block.strict
        return block.draft_logprob - block.top_logprob[:, :-1] >= log_of_threshold(self.id, self.r)


@dataclass(frozen=True)
class TopK(LooseRule):
    """Accept where x is among the target's k most probable tokens."""

    k: int = 2
    """Rank, counted from 1, that is still tolerated; 1 is strict."""
    id: ClassVar[str] = "top-k"
    knob: ClassVar[str | None] = "k"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (2, 3, 4, 5, 6, 8, 10, 15, 20)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"top-k: k is {self.k}, but at least the best token must count. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        return (block.draft_rank < self.k) if self.k > 1 else block.strict
