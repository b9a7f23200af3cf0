"""SGLang's thresholds: target-only acceptance with two inflation knobs (sgl-project/sglang, speculative sampling)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, allowed, own_token


@dataclass(frozen=True)
class SglThreshold(LooseRule):
    """Sampled: accept where u <= p(x) / acc or p(x) >= single. Greedy: accept a match or where p(x) >= single.

    The draft's probabilities are ignored on purpose: with acc = single = 1 the text has the distribution p for any
    draft, though with fewer accepted tokens than the strict test. Therefore the rule replaces that test.
    """

    acc: float = 1.0
    """What p(x) is divided by before the draw, in (0, 1]; 1 is lossless. Without effect when greedy."""
    single: float = 1.0
    """Target probability that is enough without a draw, in (0, 1]; 1 is lossless."""
    id: ClassVar[str] = "sgl-threshold"
    knob: ClassVar[str | None] = "single"
    looser: ClassVar[Literal["up", "down"]] = "down"
    superset = False
    grid: ClassVar[tuple[float, ...]] = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __post_init__(self) -> None:
        if not (0 < self.acc <= 1 and 0 < self.single <= 1):
            raise UserError(
                f"sgl-threshold: acc {self.acc} and single {self.single} lie in (0, 1]. Both at 1 are lossless."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        p_BK = block.draft_logprob.exp()
        sure_BK = p_BK >= self.single
        if block.greedy:
            if self.acc < 1:
                warnings.warn("sgl-threshold: acc has no effect when greedy; set single instead.", stacklevel=2)
            return block.strict | sure_BK
        assert block.uniforms is not None
        u_BK = block.uniforms[:, :-1]
        lossless_BK = (u_BK <= p_BK) & (p_BK > 0)  # what remains where looseness is not allowed
        return lossless_BK | (((u_BK * self.acc <= p_BK) | sure_BK) & allowed(block))

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        """Greedy: t*. Sampled: a draw from p, behind a refusal without the refused token."""
        return own_token(block if block.greedy else replace(block, q=None), length_B)
