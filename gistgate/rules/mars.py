"""MARS: where the target's two best tokens are nearly equal, either is fine (arXiv 2601.15498)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


def two_best(block: Block) -> tuple[Tensor, Tensor]:
    """The two largest logits at each drafted position, each [B, K]."""
    first_BK, second_BK = block.logits[:, :-1].topk(2, dim=-1).values.unbind(-1)
    return first_BK, second_BK


@dataclass(frozen=True)
class Mars(LooseRule):
    """Accept one of the target's two best tokens where z(2) / z(1) > theta, as published.

    The ratio means what it should only for positive logits: shifting all of them leaves p as it is but not the ratio.
    The released code relaxes sampled requests alone and its strict branch is not lossless; here the gate stands beside
    the lossless test at every temperature.
    """

    theta: float = 0.9
    """Ratio of the logits above which both tokens count; 1 is strict for positive logits, infinity for all."""
    id: ClassVar[str] = "mars"
    knob: ClassVar[str | None] = "theta"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.99, 0.98, 0.97, 0.95, 0.92, 0.9, 0.87, 0.83, 0.8, 0.7, 0.5, 0.0)

    def __post_init__(self) -> None:
        if self.theta != self.theta:
            raise UserError("mars: theta is not a number. Give a ratio of logits; 1 is strict for positive logits.")

    def accept(self, block: Block, state: State) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (second_BK / first_BK > self.theta)


@dataclass(frozen=True)
class MarsMargin(LooseRule):
    """Accept one of the target's two best tokens where z(1) - z(2) <= margin, which no shift of the logits changes.

    The difference is that of ln p at the request's temperature: halving the temperature doubles it.
    """

    margin: float = 0.5
    """Largest tolerated difference of the logits in nats; below 0 is strict."""
    id: ClassVar[str] = "mars-margin"
    knob: ClassVar[str | None] = "margin"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

    def __post_init__(self) -> None:
        if self.margin != self.margin:
            raise UserError("mars-margin: margin is not a number. Give a difference of logits in nats.")

    def accept(self, block: Block, state: State) -> Tensor:
        first_BK, second_BK = two_best(block)
        return (block.draft_rank < 2) & (first_BK - second_BK <= self.margin)
