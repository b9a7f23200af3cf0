"""How far two distributions are apart. p and q `[..., V]` sum to 1 over the last axis; results `[...]` are in nats.

Logarithms see no probability below 1e-10: processors that forbid a token to one model alone (top-k, top-p) would make
every Kullback-Leibler divergence infinite, and so would a probability that underflows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gistgate.block import Block

LOG_FLOOR = 1e-10
"""Smallest probability that a logarithm sees."""


def draft_probs(block: Block) -> Tensor:
    """q [B, K, V]; a drafter without probabilities was certain of its tokens."""
    if block.q is not None:
        return block.q
    return torch.zeros_like(block.logits[:, :-1]).scatter(-1, block.draft_ids[..., None], 1.0)


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) = sum p ln (p / q), with 0 ln 0 = 0 and q floored; never below 0, at most about 23."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q.clamp_min(LOG_FLOOR))).sum(-1).clamp_min(0)


def js(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon: the mean divergence of both from their midpoint; symmetric, at most ln 2."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def ag(p: Tensor, q: Tensor) -> Tensor:
    """The arguments of `js` the other way round: the mean divergence of the midpoint from both; at most about 11."""
    middle = (p + q) / 2
    return (kl(middle, p) + kl(middle, q)) / 2


def tv(p: Tensor, q: Tensor) -> Tensor:
    """Total variation: half the sum of the differences; a share in [0, 1]."""
    return (p - q).abs().sum(-1) / 2


def coarse(p: Tensor, q: Tensor, k: int = 50) -> tuple[Tensor, Tensor]:
    """Both with the k tokens that p likes best, and all others as one `[..., k + 1]`; as they are for a small V."""
    if p.shape[-1] <= k:
        return p, q
    p_top, index = p.topk(k, dim=-1)
    q_top = q.gather(-1, index)
    return with_rest(p_top), with_rest(q_top)


def with_rest(top: Tensor) -> Tensor:
    """Some probabilities, and behind them what is missing to 1."""
    return torch.cat([top, (1 - top.sum(-1, keepdim=True)).clamp_min(0)], dim=-1)
