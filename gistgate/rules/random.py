"""The blind control: tolerate mismatches at a given rate, whatever they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class Random(LooseRule):
    """Accept each mismatch with probability `rate`, reproducibly for the request's seed."""

    rate: float = 0.1
    """Share of mismatches tolerated; 0 is strict, 1 keeps every draft token."""
    id: ClassVar[str] = "random"
    knob: ClassVar[str | None] = "rate"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
    needs: ClassVar[frozenset[str]] = frozenset({"uniforms"})

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise UserError(f"random: rate is {self.rate}, but a share lies in [0, 1]. 0 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        assert block.uniforms is not None
        # After a refusal by the strict test u is no longer uniform on (0, 1). The fractional part of a multiple of u
        # is nearly uniform and needs no second random number per position.
        return (block.uniforms[:, :-1] * 4096.0) % 1.0 < self.rate
