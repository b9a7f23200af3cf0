"""Ensemble weight: verify against a mixture of target and draft (arXiv 2604.07622, static form)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State, own_token
from gistgate.rules.divergences import draft_probs


@dataclass(frozen=True)
class Ensemble(LooseRule):
    """Accept against nu = w p + (1 - w) q: its argmax when greedy, else with min(1, nu(x) / q(x)).

    Sampled tokens are distributed as nu, and greedy ones with `superset=False` and `replacement="argmax_nu"` are those
    of transformers with `assistant_ensemble_weight=w`. Exempt are the first token of an answer and protocol tokens,
    which stay the target's decision, and tokens that top-k or top-p forbid the target (p = 0).
    """

    w: float = 1.0
    """Weight of the target in [0, 1]; 1 is strict and the published default."""
    replacement: Literal["argmax_p", "argmax_nu"] = "argmax_p"
    """What stands in place of a refused token in greedy requests; nu may prefer a token that neither model does."""
    superset: bool = True
    """True: strict OR ensemble. False: ensemble alone, as published, which can refuse an exact match."""
    id: ClassVar[str] = "ensemble"
    knob: ClassVar[str | None] = "w"
    looser: ClassVar[Literal["up", "down"]] = "down"
    needs: ClassVar[frozenset[str]] = frozenset({"q"})
    grid: ClassVar[tuple[float, ...]] = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"superset": False, "replacement": "argmax_nu"})

    def __post_init__(self) -> None:
        if not 0 <= self.w <= 1:
            raise UserError(f"ensemble: w is {self.w}, but a weight lies in [0, 1]. 1 is strict.")
        if self.replacement not in ("argmax_p", "argmax_nu"):
            raise UserError(f"ensemble: replacement is '{self.replacement}'. It is 'argmax_p' or 'argmax_nu'.")

    def accept(self, block: Block, state: State) -> Tensor:
        if self.w == 1:  # rounding can make two probabilities equal whose logits are not
            return block.strict
        if block.greedy:
            probs = block.probs[:, :-1]
            return block.draft_ids == self.favourite(block.logits[:, :-1], probs, draft_probs(block))
        assert block.uniforms is not None
        # u <= 1 - w + w p(x) / q(x)
        nu_x_BK = (1 - self.w) * block.draft_q + self.w * block.draft_logprob.exp()
        return block.uniforms[:, :-1] * block.draft_q <= nu_x_BK

    def favourite(self, logits: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """The argmax of nu `[...]` for logits, p and q `[..., V]`, among the tokens that the target may write."""
        nu = ((1 - self.w) * q).add_(p, alpha=self.w)  # few passes: a vocabulary can have 150,000 tokens
        return nu.masked_fill_(logits == -torch.inf, -1.0).argmax(-1)

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        own_B = own_token(block, length_B)
        num = block.draft_ids.shape[1]
        if not block.greedy or self.replacement == "argmax_p" or self.w == 1 or num == 0:
            return own_B
        rows_B, at_B = torch.arange(len(length_B), device=length_B.device), length_B.clamp_max(num - 1)
        own = (rows_B, at_B)
        favourite_B = self.favourite(block.logits[own], block.probs[own], draft_probs(block)[own])
        refused_B = length_B < block.valid.sum(-1)
        if block.protocol is not None:
            refused_B = refused_B & ~torch.isin(torch.stack([own_B, favourite_B]), block.protocol).any(0)
        return torch.where(refused_B, favourite_B, own_B)
