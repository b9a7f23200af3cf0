"""WISV: a learned gate that loosens when a round is expensive; bytes that the draft side sends (arXiv 2604.17701)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.rule import Context, Rule, State, kept_probs
from gistgate.core.utils import UserError
from gistgate.rules.divergence import Ensemble

# ---- The learned token gate: tolerate a mismatch where the gate finds harm improbable (arXiv 2504.20039).


@dataclass(frozen=True)
class AutoJudge(Rule):
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


# ---- Judge Decoding: tolerate a mismatch that a gate trained on error spans finds correct (arXiv 2501.19309).


@dataclass(frozen=True)
class Judge(Rule):
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


# ---- The gate behind `ensemble`: a mismatch stays where the mixture favours it and the gate finds harm improbable.


@dataclass(frozen=True)
class EnsembleGate(Rule):
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


ID_BYTES = 4
"""Bytes of one token id."""
NUMBER_BYTES = 2
"""Bytes of one number of a state in half precision."""


class Costs(Context):
    """Fills `Block.cost` where a request names its cost."""

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """The cost of each row [B], 0 for a row that names none; nothing where no row does."""
        if all(row.cost is None for row in rows):
            return {}
        return {"cost": torch.tensor([row.cost or 0.0 for row in rows], device=block.logits.device)}


@dataclass(frozen=True)
class Wisv(Rule):
    """Accept where P(harm) <= min(risk + kappa cost, limit), with the request's cost in [0, 1], 0 where unknown.

    Quality depends on the cost, and calibration decodes without costs. A certificate therefore holds at kappa = 0, and
    where a larger kappa is named, it is uncertified.
    """

    risk: float = 0.05
    """Tolerated probability of harm at cost 0; below 0 is strict at any cost."""
    kappa: float = 0.0
    """Probability of harm that the full cost adds; at 0 costs change nothing."""
    limit: float = 1.0
    """Largest tolerated probability of harm: set it to what calibration allowed."""
    upload: Literal["all", "mismatch"] = "all"
    """Draft states that are sent: all of a draft, or those of mismatches only. Only the byte counter depends on it."""
    width: int = 2048
    """Numbers in one draft state."""
    id: ClassVar[str] = "wisv"
    knob: ClassVar[str | None] = "risk"
    looser: ClassVar[Literal["up", "down"]] = "up"
    needs: ClassVar[frozenset[str]] = frozenset({"gate"})
    counters: ClassVar[tuple[str, ...]] = ("uplink_bytes",)
    grid: ClassVar[tuple[float, ...]] = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __post_init__(self) -> None:
        if not (self.risk <= 1 and self.kappa >= 0 and 0 <= self.limit <= 1 and self.width >= 0):
            raise UserError(
                f"wisv: risk {self.risk}, kappa {self.kappa}, limit {self.limit}, width {self.width} do not fit: the "
                "risk is at most 1 (below 0 is strict), kappa and width are 0 or more, the limit lies in [0, 1]."
            )
        if self.upload not in ("all", "mismatch"):
            raise UserError(f"wisv: upload is '{self.upload}', but it is 'all' or 'mismatch'.")

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """What a round costs each request."""
        return Costs()

    def accept(self, block: Block, state: State) -> Tensor:
        probs_BK = kept_probs(block, self.id)
        if self.risk < 0:
            return block.strict
        # P(harm) <= thr(c) = min(thr_0 + kappa c, limit)
        cost_B = probs_BK.new_zeros(len(probs_BK)) if block.cost is None else block.cost.clamp(0, 1)
        threshold_B1 = (self.risk + self.kappa * cost_B).clamp_max(self.limit)[:, None]
        return 1 - probs_BK <= threshold_B1

    def advance(self, block: Block, acceptance: Acceptance, state: State) -> State:
        """Count under "uplink_bytes" [B]: the ids of every draft, and the states that are sent with it or after it."""
        sent_BK = block.valid if self.upload == "all" else block.valid & ~block.strict
        round_B = ID_BYTES * block.valid.sum(-1) + NUMBER_BYTES * self.width * sent_BK.sum(-1)
        before_B = state.get("uplink_bytes", torch.zeros_like(round_B))
        return {**state, "uplink_bytes": before_B + round_B}
