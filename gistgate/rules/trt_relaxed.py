"""TensorRT-LLM's relaxed acceptance: while thinking, a top candidate nearly as probable as the best may stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import Context, LooseRule, State
from gistgate.rules.thinking import Thinking, find_markers


@dataclass(frozen=True)
class TrtRelaxed(LooseRule):
    """Accept where x is among the top k and p(x) >= p(t*) - delta, between the think markers.

    delta is a difference of probabilities, as in the released kernel. In the mode "ratio" it is a share of p(t*):
    p(x) >= (1 - delta) p(t*). From 0 (strict) to 1 (top k alone) both modes loosen.
    """

    delta: float = 0.6
    """How far below the best token a tolerated one may lie: in probability, or as a share of p(t*); 0 is strict."""
    k: int = 10
    """Rank, counted from 1, that is still tolerated; 1 is strict."""
    mode: Literal["diff", "ratio"] = "diff"
    """What delta is."""
    scope: Literal["think", "all"] = "think"
    """think: only between the think markers; all: everywhere, also for models that do not think."""
    id: ClassVar[str] = "trt-relaxed"
    knob: ClassVar[str | None] = "delta"
    looser: ClassVar[Literal["up", "down"]] = "up"
    temperatures: ClassVar[str] = "greedy"
    alternative: ClassVar[str] = "'prob-ratio'"
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"mode": "ratio"}, {"k": 3}, {"k": 3, "mode": "ratio"})

    def __post_init__(self) -> None:
        if not 0 <= self.delta <= 1 or self.k < 1:
            raise UserError(f"trt-relaxed: delta {self.delta} lies in [0, 1] (0 is strict), k {self.k} is 1 or more.")
        if self.mode not in ("diff", "ratio") or self.scope not in ("think", "all"):
            raise UserError(
                f"trt-relaxed: mode '{self.mode}', scope '{self.scope}' do not fit: the mode is 'diff' or 'ratio', the "
                "scope 'think' or 'all'."
            )

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        """Where the think markers are; of no interest where the rule applies everywhere."""
        return Context() if self.scope == "all" else Thinking(find_markers(tokenizer, think_markers))

    def accept(self, block: Block, state: State) -> Tensor:
        if self.delta == 0 or self.k == 1:  # a tie with t* is no reason to overrule the strict test
            return block.strict
        p_BK, top_BK = block.draft_logprob.exp(), block.top_logprob[:, :-1].exp()
        slack_BK = self.delta * (top_BK if self.mode == "ratio" else torch.ones_like(top_BK))
        near_BK = (top_BK - p_BK <= slack_BK) & (block.draft_rank < self.k)
        if self.scope == "all":
            return near_BK
        if block.thinking is None:
            raise UserError("trt-relaxed looks between think markers, and none were given. Set scope: all.")
        return near_BK & block.thinking
