"""KL judge: tolerate a mismatch where target and draft hardly differ anyway (arXiv 2601.04766)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State
from gistgate.rules.divergences import draft_probs, kl


@dataclass(frozen=True)
class KLJudge(LooseRule):
    """Accept where KL(p || q) <= tau, unless the target is sure of something.

    A trained judge is largely a function of how far p and q are apart; this is that distance itself. The token is not
    looked at: where the distributions are close, an improbable one passes too. Both distributions are those of the
    request, so that top-k and top-p, which may forbid one of them a token of the other, make it far stricter.
    """

    tau: float = 0.4
    """Largest tolerated divergence in nats; below 0 is strict, beyond 23 it tolerates all that the guard permits."""
    max_p: float = 0.9
    """Guard: where the target's best token is more probable than this, only the strict rule accepts; 1 is no guard."""
    temperature: float = 1.0
    """Temperature applied to both distributions before they are compared, in addition to that of the request."""
    id: ClassVar[str] = "kl-judge"
    knob: ClassVar[str | None] = "tau"
    looser: ClassVar[Literal["up", "down"]] = "up"
    needs: ClassVar[frozenset[str]] = frozenset({"q"})
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"max_p": 1.0})

    def __post_init__(self) -> None:
        if not (0 < self.max_p <= 1 and self.temperature > 0):
            raise UserError(
                f"kl-judge: max_p {self.max_p}, temperature {self.temperature} do not fit: the guard lies in (0, 1], "
                "the temperature above 0."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        # accept(j)  <=>  KL(p_j || q_j) <= tau  and  max p_j <= max_p
        p_BKV, q_BKV = self.compared(block)
        return (kl(p_BKV, q_BKV) <= self.tau) & (p_BKV.amax(-1) <= self.max_p)

    def compared(self, block: Block) -> tuple[Tensor, Tensor]:
        """p and q [B, K, V] at the temperature of the comparison."""
        logprobs_BKV, q_BKV = block.logprobs[:, :-1], draft_probs(block)
        if self.temperature == 1:
            return logprobs_BKV.exp(), q_BKV
        sharpened_BKV = q_BKV.pow(1 / self.temperature)
        return (logprobs_BKV / self.temperature).softmax(-1), sharpened_BKV / sharpened_BKV.sum(-1, keepdim=True)
