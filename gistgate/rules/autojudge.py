"""The learned token gate: tolerate a mismatch where the gate finds harm improbable (arXiv 2504.20039)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, kept_probs


@dataclass(frozen=True)
class AutoJudge(LooseRule):
    """Accept where P(harm) <= risk, with P(harm) = 1 - P(meaning kept) from a calibrated gate."""

    risk: float = 0.05
    """Largest tolerated probability that the draft token changes the meaning; below 0 is strict."""
    id: ClassVar[str] = "autojudge"
    knob: ClassVar[str | None] = "risk"
    looser: ClassVar[Literal["up", "down"]] = "up"
    grid: ClassVar[tuple[float, ...]] = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5)
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})

    def __post_init__(self) -> None:
        if not self.risk <= 1:
            raise UserError(f"autojudge: risk is {self.risk}, but a probability is at most 1. Below 0 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        return 1 - kept_probs(block, self.id) <= self.risk
