"""Outcomes of a sampled round summed over all drafts and all numbers: exact distributions of first
and second tokens.

Probabilities are eighths, draft probabilities quarters, so every threshold falls between two cells
of the grid that stands for the numbers, and the sums are exact up to rounding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Block
from tests.blocks import accepted

EIGHTHS = torch.tensor([[3, 3, 2], [1, 6, 1], [2, 2, 4], [0, 5, 3]]) / 8
"""p of the first token, and of the second behind each first one."""
QUARTERS = torch.tensor([[1, 1, 2], [1, 2, 1], [2, 1, 1], [2, 0, 2]]) / 4
"""q likewise."""
P, Q = EIGHTHS[0].double(), QUARTERS[0].double()
WANTED = EIGHTHS[0, :, None] * EIGHTHS[1:]
"""Probability of every pair of tokens [3, 3]."""


def cells(num: int, dimensions: int) -> Tensor:
    """Midpoints of a grid over the unit cube [num ** dimensions, dimensions]."""
    axis = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    return torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)


def first_token(
    rule: Any, num: int = 240, q_3: Tensor = Q, logits_3: Tensor | None = None
) -> Tensor:
    """Distribution [3] of the first token for drafts from `q_3`, over `num` x `num` numbers for
    test and draw.
    """
    uniforms, total = cells(num, 2), torch.zeros(3, dtype=torch.float64)
    for x in range(3):
        ids = torch.full((len(uniforms), 1), x)
        z_3, q = (
            P.float().log() if logits_3 is None else logits_3,
            q_3.float().expand(len(ids), 1, 3),
        )
        outcome = accepted(
            rule,
            Block(ids, ids >= 0, z_3.expand(len(ids), 2, 3), q=q, uniforms=uniforms, greedy=False),
        )
        tokens = torch.where(outcome.length == 1, x, outcome.own_ids)
        total += q_3[x] * torch.bincount(tokens, minlength=3) / len(tokens)
    return total


def drafted(draft: tuple[int, ...], uniforms: Tensor, certain: bool) -> Block:
    """The same draft of up to two tokens in every row, judged with every combination of numbers."""
    rows = [EIGHTHS[0], *(EIGHTHS[1 + x] for x in draft)]
    batch = len(uniforms)
    ids = torch.tensor(draft, dtype=torch.long).expand(batch, len(draft))
    q = (
        torch.stack([QUARTERS[0], *(QUARTERS[1 + x] for x in draft[:-1])])
        if draft
        else torch.zeros(0, 3)
    )
    return Block(
        ids,
        torch.ones_like(ids, dtype=torch.bool),
        torch.stack(rows).log().expand(batch, -1, -1),
        q=None if certain else q.expand(batch, -1, -1),
        gate_probs=torch.full(ids.shape, 0.5),
        uniforms=uniforms,
        greedy=False,
        second=torch.zeros(batch, len(draft), 3),
        thinking=torch.ones_like(ids, dtype=torch.bool),
    )


def pairs(rule: Any, draft: tuple[int, ...], certain: bool, num: int) -> Tensor:
    """Probability of every first pair of tokens [3, 3], given the draft; a missing second token
    comes from p.
    """
    judged = drafted(draft, cells(num, len(draft) + 1), certain)
    outcome = accepted(rule, judged)
    texts = torch.cat(
        [judged.draft_ids, torch.zeros(len(outcome.length), 2, dtype=torch.long)], dim=1
    )
    texts.scatter_(1, outcome.length[:, None], outcome.own_ids[:, None])
    first, second = texts[:, 0], texts[:, 1]
    after = torch.where(
        (outcome.length >= 1)[:, None], F.one_hot(second, 3), EIGHTHS[1:][first]
    ).double()
    return torch.zeros(3, 3, dtype=torch.float64).index_add(0, first, after) / len(first)
