"""SENSE's soft gate: an undecided target, and a plausible token or a calm continuation (arXiv 2606.00021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class Sense(LooseRule):
    """Tolerate a mismatch where Hn(p) > gamma and x is among the top k or few mismatches follow; for any drafter.

    The paper leaves the window, its kernel and tau_c open: a box over the next `window` positions is our choice.
    """

    gamma: float = 0.05
    """Entropy above which the target counts as undecided, as a share of ln V; 1 is strict."""
    k: int = 3
    """Rank, counted from 1, that counts as plausible; 0 and 1 close this route."""
    window: int = 4
    """Following positions among which mismatches are counted, in tokens; fewer at the end of a draft."""
    tau_c: float = 0.25
    """Largest share of mismatches in the window that counts as calm; below 0 closes this route."""
    con_requires_topk: bool = False
    """True: plausible and calm (the authors' text); False: plausible or calm (the authors' equation)."""
    full_window: bool = False
    """True: a window that the draft does not fill is never calm."""
    id: ClassVar[str] = "sense"
    knob: ClassVar[str | None] = "gamma"
    looser: ClassVar[Literal["up", "down"]] = "down"
    temperatures: ClassVar[str] = "greedy"
    alternative: ClassVar[str] = "'fly'"
    grid: ClassVar[tuple[float, ...]] = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.035, 0.02, 0.01, 0.005)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"con_requires_topk": True}, {"tau_c": 0.0}, {"k": 2})

    def __post_init__(self) -> None:
        if self.k < 0 or self.window < 1:
            raise UserError(
                f"sense: k {self.k} and window {self.window} do not fit: k is 0 or more, the window 1 token or more."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        # accept(j)  <=>  m_j  or  (Hn(p_j) > gamma  and  (x_j in top-k(p_j)  or  R_j <= tau_c))
        share_BK = block.entropy[:, :-1] / math.log(block.logits.shape[-1])
        undecided_BK = share_BK.clamp_max(1.0) > self.gamma  # rounding must not lift an even spread above 1
        plausible_BK = block.draft_rank < (self.k if self.k > 1 else 0)  # a tie with t* has rank 0 as well
        calm_BK = self.density(block) <= self.tau_c
        either_BK = plausible_BK & calm_BK if self.con_requires_topk else plausible_BK | calm_BK
        return block.strict | (undecided_BK & either_BK)

    def density(self, block: Block) -> Tensor:
        """R, the share of mismatches among the next `window` positions of the draft [B, K]; 1 where none follows."""
        following_BK = self.count_ahead(block.valid)
        misses_BK = self.count_ahead(block.valid & ~block.strict)
        known_BK = following_BK >= (self.window if self.full_window else 1)
        return torch.where(known_BK, misses_BK / following_BK.clamp_min(1.0), 1.0)

    def count_ahead(self, flags_BK: Tensor) -> Tensor:
        """How many of the next `window` flags are set [B, K]."""
        padded = F.pad(flags_BK.float(), (0, self.window + 1))
        return padded.unfold(-1, self.window + 1, 1)[:, :-1, 1:].sum(-1)
