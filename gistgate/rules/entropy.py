"""Rules that tolerate a mismatch where the target is undecided and the draft agrees with it behind: FLy and SENSE."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Block
from gistgate.core.rule import Rule, State


@dataclass(frozen=True)
class Fly(Rule, id="fly", knob="theta", looser="down"):
    """FLy (arXiv 2511.22972): entropy gate and deferred window, in the form of the vLLM port unless set otherwise.

    Presets: `fly-paper` (entropy of the whole vocabulary, normalised), `fly-amd` (five following matches,
    for greedy requests; AMD's code samples in another way than this rule).
    """

    theta: float = 0.3  # undecided from here on: nats for "top3", share of ln V for "normalised"; above ln 3 (1) strict
    window: int = 6  # matches that have to follow the mismatch, in tokens
    strict_window: bool = True  # the window must fit the block (its last `window` positions are strict), or is cut
    entropy: Literal["top3", "normalised"] = "top3"  # which entropy theta is compared with
    p_min: float = 0.0  # smallest target probability of a tolerated token; the published rule has no floor
    grid = (1.09, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
    variants = ({}, {"window": 0}, {"window": 2}, {"window": 2, "strict_window": False})

    def __post_init__(self) -> None:
        self.check(
            self.window >= 0 and 0 <= self.p_min < 1,
            "the window is 0 or more tokens, the entropy 'top3' or 'normalised', p_min in [0, 1)",
        )

    def accept(self, block: Block, state: State) -> Tensor:
        # accept(j)  <=>  m_j  or  (ent(p_j) >= theta  and  m_{j+1} .. m_{j+W} all hold)
        m_BK = block.strict
        ent = block.entropy3 if self.entropy == "top3" else block.entropy / math.log(block.logits.shape[-1])
        # Behind the draft's end a window counts as failed (strict windows) or as held (windows cut at the end).
        follows_BK = m_BK if self.strict_window else m_BK | ~block.valid
        padded = F.pad(follows_BK, (0, self.window + 1), value=not self.strict_window)
        agrees_BK = padded.unfold(-1, self.window + 1, 1)[:, :-1, 1:].all(-1)
        probable_BK = block.draft_logprob >= (math.log(self.p_min) if self.p_min else -torch.inf)
        return m_BK | ((ent[:, :-1] >= self.theta) & agrees_BK & probable_BK)


@dataclass(frozen=True)
class Sense(Rule, id="sense", knob="gamma", looser="down"):
    """SENSE's gate (arXiv 2606.00021): keep x where Hn(p) > gamma and x is in the top k or few mismatches follow.

    It serves any drafter. The paper leaves the window, its kernel and tau_c open: a box over the next `window`
    positions is our choice.
    """

    gamma: float = 0.05  # entropy above which the target counts as undecided, as a share of ln V; 1 is strict
    k: int = 3  # rank, counted from 1, that counts as plausible; 0 and 1 close this route
    window: int = 4  # following positions among which mismatches are counted; fewer at the end of a draft
    tau_c: float = 0.25  # largest share of mismatches in the window that counts as calm; below 0 closes this route
    con_requires_topk: bool = False  # plausible and calm (the authors' text), or either (the authors' equation)
    full_window: bool = False  # True: a window that the draft does not fill is never calm
    temperatures = "greedy"
    alternative = "'fly'"
    grid = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.035, 0.02, 0.01, 0.005)
    variants = ({}, {"con_requires_topk": True}, {"tau_c": 0.0}, {"k": 2})

    def __post_init__(self) -> None:
        self.check(self.k >= 0 and self.window >= 1, "k is 0 or more, the window 1 token or more")

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

        def count_ahead(flags_BK: Tensor) -> Tensor:
            padded = F.pad(flags_BK.float(), (0, self.window + 1))
            return padded.unfold(-1, self.window + 1, 1)[:, :-1, 1:].sum(-1)

        following_BK, misses_BK = count_ahead(block.valid), count_ahead(block.valid & ~block.strict)
        known_BK = following_BK >= (self.window if self.full_window else 1)
        return torch.where(known_BK, misses_BK / following_BK.clamp_min(1.0), 1.0)
