"""Lenience: let a token be drawn up to 1 / l times as often as the target would (arXiv 2211.17192, appendix)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class Lenience(LooseRule):
    """Accept with min(1, p(x) / (l q(x))); a refused token is replaced from the residual norm([p - q]_+).

    No token becomes more than 1 / l times as probable as under the target. Greedy requests have no such ratio.
    """

    lenience: float = 0.5
    """l in (0, 1]; 1 is strict."""
    id: ClassVar[str] = "lenience"
    knob: ClassVar[str | None] = "lenience"
    looser: ClassVar[Literal["up", "down"]] = "down"
    temperatures: ClassVar[str] = "sampled"
    alternative: ClassVar[str] = "'prob-ratio'"
    grid: ClassVar[tuple[float, ...]] = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise UserError(f"lenience: lenience is {self.lenience}, but it lies in (0, 1]. 1 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        if block.greedy:  # undefined; the decoder refuses such a request
            return block.strict
        assert block.uniforms is not None
        # u <= p(x) / (l q(x))
        return block.uniforms[:, :-1] * self.lenience * block.draft_q <= block.draft_logprob.exp()
