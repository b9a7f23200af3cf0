"""Judge Decoding: tolerate a mismatch that a gate trained on error spans finds correct (arXiv 2501.19309)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, kept_probs


@dataclass(frozen=True)
class Judge(LooseRule):
    """Accept where P(token is fine) > delta; `autojudge` limits the probability of the opposite.

    The published gate is linear, reads the target's state after the token before the final normalisation, and is
    trained on spans: tokens before an error are labelled fine, those of the wrong span are not.
    """

    delta: float = 0.5
    """Probability that a tolerated token has to exceed; 1 is strict."""
    id: ClassVar[str] = "judge"
    knob: ClassVar[str | None] = "delta"
    looser: ClassVar[Literal["up", "down"]] = "down"
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})
    grid: ClassVar[tuple[float, ...]] = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __post_init__(self) -> None:
        if not self.delta >= 0:
            raise UserError(f"judge: delta is {self.delta}, but a probability is at least 0. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        probs_BK = kept_probs(block, self.id)
        return block.strict if self.delta >= 1 else probs_BK > self.delta  # a rounded probability cannot pass at 1
