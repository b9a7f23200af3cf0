"""WISV: a learned gate that loosens when a round is expensive; bytes that the draft side sends (arXiv 2604.17701)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.errors import UserError
from gistgate.rules.base import Context, LooseRule, State, kept_probs

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
class Wisv(LooseRule):
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
