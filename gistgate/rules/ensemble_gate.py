"""The gate behind `ensemble`: a mismatch stays where the mixture favours it and the gate finds harm improbable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.autojudge import AutoJudge
from gistgate.rules.base import LooseRule, State, kept_probs
from gistgate.rules.ensemble import Ensemble


@dataclass(frozen=True)
class EnsembleGate(LooseRule):
    """Accept where `ensemble` accepts at w and P(harm) <= risk; the draft's confidence may thus veto the gate.

    Each of the two may be looser than it could be alone. At w = 0 every greedy draft token passes the mixture, and the
    rule equals `autojudge`.
    """

    risk: float = 0.05
    """Largest tolerated probability that the draft token changes the meaning; below 0 is strict."""
    w: float = 0.3
    """Weight of the target in the mixture, in [0, 1]; 1 is strict."""
    id: ClassVar[str] = "ensemble-gate"
    knob: ClassVar[str | None] = "risk"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = AutoJudge.grid
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"w": 0.1}, {"w": 0.5})
    needs: ClassVar[frozenset[str]] = AutoJudge.needs | Ensemble.needs
    temperatures: ClassVar[str] = "greedy"
    alternative: ClassVar[str] = "'ensemble'"

    def __post_init__(self) -> None:
        if not self.risk <= 1:
            raise UserError(f"ensemble-gate: risk is {self.risk}, but a probability is at most 1. Below 0 is strict.")
        if not 0 <= self.w <= 1:
            raise UserError(f"ensemble-gate: w is {self.w}, but a weight lies in [0, 1]. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        harmless_BK = 1 - kept_probs(block, self.id) <= self.risk
        return Ensemble(w=self.w).accept(block, state) & harmless_BK
