"""Rules that ask a trained gate: Judge Decoding, AutoJudge, their union with `ensemble`, and
WISV.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Block
from gistgate.core.rule import Context, Rule
from gistgate.core.utils import Amount, Risk, Share
from gistgate.rules.divergence import Ensemble


@dataclass(frozen=True)
class AutoJudge(Rule, id="autojudge", knob="risk", looser="up"):
    """AutoJudge (arXiv 2504.20039): accept where P(harm) = 1 - P(meaning kept) <= risk, by a
    calibrated gate.
    """

    # Largest tolerated probability that the draft token changes the meaning; below 0 is strict.
    risk: Risk = 0.05
    grid = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5)
    needs = frozenset({"gate"})

    def accept(self, block: Block) -> Tensor:
        return block.harm <= self.risk


@dataclass(frozen=True)
class Judge(Rule, id="judge", knob="delta", looser="down"):
    """Judge Decoding (arXiv 2501.19309): accept where P(token is fine) > delta; `autojudge` limits
    the opposite.
    """

    delta: Amount = 0.5  # probability that a tolerated token has to exceed; 1 is strict
    needs = frozenset({"gate"})
    grid = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)

    def accept(self, block: Block) -> Tensor:
        # A probability that was rounded up must not pass at 1.
        return block.fine > self.delta if self.delta < 1 else block.strict


@dataclass(frozen=True)
class EnsembleGate(Rule, id="ensemble-gate", knob="risk", looser="up"):
    """Accept where `ensemble` accepts at w and P(harm) <= risk; at w = 0 the rule equals
    `autojudge`.
    """

    # Largest tolerated probability that the draft token changes the meaning; below 0 is strict.
    risk: Risk = 0.05
    w: Share = 0.3  # weight of the target in the mixture, in [0, 1]; 1 is strict
    grid = AutoJudge.grid
    variants = ({}, {"w": 0.1}, {"w": 0.5})
    needs = AutoJudge.needs | Ensemble.needs
    temperatures = "greedy"

    @cached_property
    def mixture(self) -> Ensemble:
        """The rule `ensemble` at the same w."""
        return Ensemble(w=self.w)

    def accept(self, block: Block) -> Tensor:
        harmless_BK = block.harm <= self.risk
        return self.mixture.accept(block) & harmless_BK


class RequestCosts(Context):
    """Fills `Block.cost` where a request names its cost."""

    needs_eager = "asks what a round costs"

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """The cost of each row [B], 0 for a row that names none; nothing where no row does."""
        if all(row.cost is None for row in rows):
            return {}
        costs = [row.cost or 0.0 for row in rows]
        return {"cost": torch.tensor(costs, device=block.logits.device)}


@dataclass(frozen=True)
class Wisv(Rule, id="wisv", knob="risk", looser="up"):
    """WISV (arXiv 2604.17701): accept where P(harm) <= min(risk + kappa cost, limit), the request's
    cost in [0, 1].

    An unknown cost is 0. Calibration decodes without costs, so that a certificate holds at kappa =
    0.
    """

    risk: Risk = 0.05  # tolerated probability of harm at cost 0; below 0 is strict at any cost
    kappa: Amount = 0.0  # probability of harm that the full cost adds; at 0 costs change nothing
    limit: Share = 1.0  # largest tolerated probability of harm: set it to what calibration allowed
    needs = frozenset({"gate"})
    grid = AutoJudge.grid

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """What a round costs each request, where that matters."""
        return RequestCosts() if self.kappa else Context()

    def accept(self, block: Block) -> Tensor:
        if self.risk < 0:
            return block.strict
        # accept(j)  <=>  P(harm) <= min(risk + kappa cost, limit)
        harm_BK = block.harm
        cost_B = harm_BK.new_zeros(len(harm_BK)) if block.cost is None else block.cost.clamp(0, 1)
        threshold_B = (self.risk + self.kappa * cost_B).clamp_max(self.limit)
        return harm_BK <= threshold_B[:, None]
