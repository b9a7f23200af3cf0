"""Regret budget: a request may fall short of the best tokens by so much in all (huggingface/transformers#48636)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class RegretBudget(LooseRule):
    """Accept while the request's sum of max z - z(x) over accepted draft tokens stays within the budget.

    A match costs nothing. What is spent is never given back, so the loose accepts come early in an answer.
    """

    budget: float = 2.0
    """Logits (nats) that one request may spend; 0 is strict."""
    id: ClassVar[str] = "regret-budget"
    knob: ClassVar[str | None] = "budget"
    looser: ClassVar[Literal["up", "down"]] = "up"
    temperatures: ClassVar[str] = "greedy"
    alternative: ClassVar[str] = "'prob-ratio'"
    counters: ClassVar[tuple[str, ...]] = ("spent",)
    grid: ClassVar[tuple[float, ...]] = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({},)

    def __post_init__(self) -> None:
        if not self.budget >= 0:
            raise UserError(f"regret-budget: the budget is {self.budget}, but it is 0 or more logits. 0 is strict.")

    def accept(self, block: Block, state: State) -> Tensor:
        if self.budget == 0:  # a tie with the best token costs nothing, but is a mismatch
            return block.strict
        # spent + sum_{i <= j} (max z_i - z_i(x_i)) <= B; a position is only asked about when all before it stay
        after_BK = spent(block, state)[:, None] + regret(block).cumsum(-1)
        return after_BK <= self.budget

    def advance(self, block: Block, acceptance: Acceptance, state: State) -> State:
        """Add the logits that the accepted tokens cost to "spent" [B]."""
        place_K = torch.arange(block.draft_ids.shape[1], device=block.draft_ids.device)
        kept_BK = place_K < acceptance.length[:, None]
        return {**state, "spent": spent(block, state) + torch.where(kept_BK, regret(block), 0.0).sum(-1)}


def spent(block: Block, state: State) -> Tensor:
    """What each request has spent so far [B]."""
    return state.get("spent", block.logits.new_zeros(block.logits.shape[0]))


def regret(block: Block) -> Tensor:
    """max z - z(x) where the strict rule refuses x, else 0 [B, K]; infinite for a forbidden token."""
    # Both stand under the same normaliser, which cancels.
    gap_BK = block.top_logprob[:, :-1] - block.draft_logprob
    return torch.where(block.valid & ~block.strict, gap_BK, 0.0)
