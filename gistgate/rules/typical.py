"""Typical acceptance: keep what is not atypical for the target, judged by its entropy (arXiv 2401.10774)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, own_token
from gistgate.rules.replacements import target_draw


@dataclass(frozen=True)
class Typical(LooseRule):
    """Accept where p(x) > scale * min(eps, delta * exp(-H(p))), as Medusa does, or in the form of vllm-ascend.

    As published, greedy requests are decoded exactly. Where p is peaked, eps is the threshold, and where p is flat,
    delta is, so neither alone makes the rule looser everywhere. The knob multiplies both.
    """

    scale: float = 1.0
    """Factor of the threshold: 1 is the published rule, 0 keeps every token with p(x) > 0; above V / delta: strict."""
    eps: float = 0.09
    """Probability that is always enough (form "medusa")."""
    delta: float = 0.3
    """Share of exp(-H), the probability of each of equally likely tokens, that is enough (form "medusa")."""
    form: Literal["medusa", "ascend"] = "medusa"
    """"medusa", or "ascend": the threshold is scale * min(exp(-0.4 H), 0.95)."""
    superset: bool = True
    """True: strict OR typical. False: typical alone, as published, which can refuse what exact sampling accepts."""
    greedy: Literal["exact", "raw"] = "exact"
    """Greedy requests: "exact" takes the argmax alone, as published; "raw" judges them by p at temperature 1."""
    id: ClassVar[str] = "typical"
    knob: ClassVar[str | None] = "scale"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (5.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"greedy": "raw"}, {"greedy": "raw", "form": "ascend"})

    def __post_init__(self) -> None:
        if not (self.scale >= 0 and 0 < self.eps <= 1 and self.delta > 0):
            raise UserError(
                f"typical: scale {self.scale}, eps {self.eps}, delta {self.delta} do not fit: scale is 0 or more, eps "
                "a probability above 0, delta above 0."
            )
        if self.form not in ("medusa", "ascend") or self.greedy not in ("exact", "raw"):
            raise UserError(
                f"typical: form '{self.form}', greedy '{self.greedy}' do not fit: the form is 'medusa' or 'ascend', "
                "greedy 'exact' or 'raw'."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        if block.greedy and self.greedy == "exact":
            return block.match
        # accept(j)  <=>  ln p(x_j) > ln scale + ln threshold(p_j)
        log_scale = math.log(self.scale) if self.scale else -math.inf
        return block.draft_logprob > self.log_threshold(block.entropy[:, :-1]) + log_scale

    def log_threshold(self, entropy_BK: Tensor) -> Tensor:
        """ln of the published threshold [B, K] for H(p) in nats."""
        if self.form == "ascend":
            return (-0.4 * entropy_BK).clamp_max(math.log(0.95))
        return (math.log(self.delta) - entropy_BK).clamp_max(math.log(self.eps))

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        # The residual corrects the distribution after the strict test. Without that test there is nothing to correct.
        return own_token(block, length_B) if self.superset else target_draw(block, length_B)
