"""Rules that look at whole distributions: divergences of target and draft, a mixture of both, the
target's entropy.

p and q `[..., V]` sum to 1 over the last axis; divergences `[...]` are in nats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Block
from gistgate.core.rule import Rule, own_token, row_at, target_draw
from gistgate.core.utils import Count, Natural, PositiveShare, Real, Share

LOG_FLOOR = 1e-10  # smallest probability that a logarithm sees


def draft_probs(block: Block) -> Tensor:
    """q [B, K, V]; a drafter without probabilities was certain of its tokens."""
    if block.q is not None:
        return block.q
    return torch.zeros_like(block.logits[:, :-1]).scatter(-1, block.draft_ids[..., None], 1.0)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) = sum p ln (p / q), with 0 ln 0 = 0 and q floored; from 0 to about 23."""
    floored = q.clamp_min(LOG_FLOOR)
    return (torch.xlogy(p, p) - torch.xlogy(p, floored)).sum(-1).clamp_min(0)


def js(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon: the mean divergence of both from their midpoint; symmetric, at most ln 2."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def ag(p: Tensor, q: Tensor) -> Tensor:
    """The mean divergence of the midpoint from both, `js` with reversed arguments; at most about
    11.
    """
    middle = (p + q) / 2
    return (kl(middle, p) + kl(middle, q)) / 2


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Total variation: half the sum of the differences; a share in [0, 1]."""
    return (p - q).abs().sum(-1) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "js": js,
    "ag": ag,
    "kl": lambda p, q: kl(q, p),
    "reverse-kl": kl,
    "tv": tv,
}
"""Div(p, q) by name."""


@dataclass(frozen=True)
class FSD(Rule, id="fsd", knob="threshold", looser="up"):
    """Fuzzy speculative decoding (arXiv 2502.20704): accept where Div(p, q) <= threshold, whatever
    the token.

    The full variant, as published, judges every token, and refuses an exact match where the
    distributions are far apart. "ag" is what the released code calls Jensen-Shannon (its arguments
    reversed), "kl" KL(q || p) as there.
    """

    # Largest divergence in nats, for "tv" a share; below 0 none. Every `div` has its own scale.
    threshold: Real = 0.4
    div: Literal["js", "ag", "kl", "reverse-kl", "tv"] = "js"
    reduced: bool = True  # strict OR fuzzy; False: fuzzy alone
    # What replaces a refused token in sampled requests: the residual, which keeps the reduced
    # variant lossless where it tolerates nothing, or a draw from p, as published for the full
    # variant.
    replacement: Literal["p", "residual"] = "residual"
    needs = frozenset({"q"})
    grid = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.2)
    variants = ({}, {"div": "ag"}, {"div": "tv"}, {"reduced": False, "replacement": "p"})

    @property
    def superset(self) -> bool:  # type: ignore[override]
        return self.reduced

    def accept(self, block: Block) -> Tensor:
        # accept(j)  <=>  Div(p_j, q_j) <= threshold
        divergence = DIVERGENCES[self.div]
        p_BKV = block.logprobs[:, :-1].exp()
        return divergence(p_BKV, draft_probs(block)) <= self.threshold

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        replace = target_draw if self.replacement == "p" else own_token
        return replace(block, length_B)


@dataclass(frozen=True)
class KLJudge(Rule, id="kl-judge", knob="tau", looser="up"):
    """KL judge (arXiv 2601.04766): accept where KL(p || q) <= tau, unless the target is sure,
    whatever the token.
    """

    # Largest divergence in nats; below 0 is strict, beyond 23 all that the guard permits passes.
    tau: Real = 0.4
    # Guard: where the target's best token is more probable, the rule is strict; 1: no guard.
    max_p: PositiveShare = 0.9
    needs = frozenset({"q"})
    grid = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0)
    variants = ({}, {"max_p": 1.0})

    def accept(self, block: Block) -> Tensor:
        # accept(j)  <=>  KL(p_j || q_j) <= tau  and  max p_j <= max_p
        p_BKV = block.logprobs[:, :-1].exp()
        return (kl(p_BKV, draft_probs(block)) <= self.tau) & (p_BKV.amax(-1) <= self.max_p)


@dataclass(frozen=True)
class Ensemble(Rule, id="ensemble", knob="w", looser="down"):
    """Accept against nu = w p + (1 - w) q (arXiv 2604.07622, static form): its argmax, or with
    min(1, nu(x) / q(x)).

    Sampled tokens are distributed as nu, and greedy ones with `superset=False` and
    `replacement="argmax_nu"` are those of transformers with `assistant_ensemble_weight=w`, but for
    what is strict everywhere.
    """

    w: Share = 1.0  # weight of the target in [0, 1]; 1 is strict and the published default
    # What stands in place of a refused token in greedy requests; nu may prefer a token that neither
    # model does.
    replacement: Literal["argmax_p", "argmax_nu"] = "argmax_p"
    # Strict OR ensemble; False: ensemble alone, as published, which can refuse an exact match.
    superset: bool = True
    needs = frozenset({"q"})
    grid = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
    variants = ({}, {"superset": False, "replacement": "argmax_nu"})

    def accept(self, block: Block) -> Tensor:
        if self.w == 1:  # rounding can make two probabilities equal whose logits are not
            return block.strict
        if block.greedy:
            # accept(j)  <=>  x_j = argmax nu_j
            p_BKV = block.probs[:, :-1]
            return block.draft_ids == self.favourite(
                block.logits[:, :-1], p_BKV, draft_probs(block)
            )
        # accept(j)  <=>  u_j <= nu_j(x_j) / q_j(x_j)
        nu_x_BK = (1 - self.w) * block.draft_q + self.w * block.draft_logprob.exp()
        return block.tests * block.draft_q <= nu_x_BK

    def favourite(self, logits: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """The argmax of nu `[...]` for logits, p and q `[..., V]`, among the tokens that the target
        may write.
        """
        # In place, as a vocabulary can have 150,000 tokens.
        nu = ((1 - self.w) * q).add_(p, alpha=self.w)
        return nu.masked_fill_(logits == -torch.inf, -1.0).argmax(-1)

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        own_B = own_token(block, length_B)
        num = block.width
        if not block.greedy or self.replacement == "argmax_p" or self.w == 1 or num == 0:
            return own_B
        rows = (block.logits, block.probs, draft_probs(block))
        place_B = length_B.clamp_max(num - 1)
        favourite_B = self.favourite(*(row_at(values, place_B) for values in rows))
        is_replaced_B = length_B < block.valid.sum(-1)
        if block.protocol is not None:
            steers_B = torch.isin(torch.stack([own_B, favourite_B]), block.protocol).any(0)
            is_replaced_B = is_replaced_B & ~steers_B
        return torch.where(is_replaced_B, favourite_B, own_B)


def ahead(flags_BK: Tensor, window: int, behind: bool = False) -> Tensor:
    """The flags of the next `window` positions [B, K, W]; `behind` the last position all are
    alike.
    """
    padded = F.pad(flags_BK, (0, window + 1), value=behind)
    return padded.unfold(-1, window + 1, 1)[:, :-1, 1:]


@dataclass(frozen=True)
class Fly(Rule, id="fly", knob="theta", looser="down"):
    """FLy (arXiv 2511.22972): entropy gate and deferred window, in the form of the vLLM port unless
    set otherwise.
    """

    # The target is undecided from here on: nats for "top3" (above ln 3 strict), a share of ln V for
    # "normalised" (above 1 strict).
    theta: Real = 0.3
    window: Natural = 6  # matches that have to follow the mismatch, in tokens
    # The window must fit the block (its last `window` positions are strict); False: it is cut.
    strict_window: bool = True
    entropy: Literal["top3", "normalised"] = "top3"  # which entropy theta is compared with
    grid = (1.09, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
    variants = ({}, {"window": 0}, {"window": 2}, {"window": 2, "strict_window": False})

    def accept(self, block: Block) -> Tensor:
        # accept(j)  <=>  m_j  or  (ent(p_j) >= theta  and  m_{j+1} .. m_{j+W} all hold)
        m_BK = block.strict
        undecided_BK = self.entropy_of(block)[:, :-1] >= self.theta
        # Behind the draft's end a window counts as failed, or as held where it is cut there.
        follows_BK = m_BK if self.strict_window else m_BK | ~block.valid
        agrees_BK = ahead(follows_BK, self.window, behind=not self.strict_window).all(-1)
        return m_BK | (undecided_BK & agrees_BK)

    def entropy_of(self, block: Block) -> Tensor:
        """The entropy that theta is compared with [B, K + 1]."""
        if self.entropy == "top3":
            return block.entropy3
        return block.entropy / math.log(block.logits.shape[-1])


@dataclass(frozen=True)
class Sense(Rule, id="sense", knob="gamma", looser="down"):
    """SENSE's gate (arXiv 2606.00021): keep x where Hn(p) > gamma and x is in the top k or few
    mismatches follow.
    """

    # Entropy above which the target counts as undecided, as a share of ln V; 1 is strict.
    gamma: Real = 0.05
    k: Natural = 3  # rank, counted from 1, that counts as plausible; 0 and 1 close this route
    # Following positions among which mismatches are counted; fewer at the end of a draft.
    window: Count = 4
    # Largest share of mismatches in the window that counts as calm; below 0 closes this route.
    tau_c: Real = 0.25
    # Plausible and calm (the authors' text), or either (the authors' equation).
    con_requires_topk: bool = False
    temperatures = "greedy"
    grid = (0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.035, 0.02, 0.01, 0.005)
    variants = ({}, {"con_requires_topk": True}, {"tau_c": 0.0}, {"k": 2})

    def accept(self, block: Block) -> Tensor:
        # accept(j)  <=>  m_j  or  (Hn(p_j) > gamma  and  (x_j in top-k(p_j)  or  R_j <= tau_c))
        share_BK = block.entropy[:, :-1] / math.log(block.logits.shape[-1])
        # Rounding must not lift an even spread above 1.
        undecided_BK = share_BK.clamp_max(1.0) > self.gamma
        # A tie with t* has rank 0 as well, so that k = 1 has to tolerate nothing.
        plausible_BK = block.draft_rank < (self.k if self.k > 1 else 0)
        calm_BK = self.density(block) <= self.tau_c
        either_BK = plausible_BK & calm_BK if self.con_requires_topk else plausible_BK | calm_BK
        return block.strict | (undecided_BK & either_BK)

    def density(self, block: Block) -> Tensor:
        """R, the share of mismatches among the next `window` positions of the draft [B, K]; 1 where
        none follows.
        """
        following_BK = ahead(block.valid, self.window).sum(-1)
        misses_BK = ahead(block.refused, self.window).sum(-1)
        return torch.where(following_BK > 0, misses_BK / following_BK.clamp_min(1), 1.0)
