"""The first token that a sampled round writes, over all drafts and all numbers.

p is 3/8, 3/8, 2/8 and q is 1/4, 1/4, 2/4; every threshold falls between two cells of the grid, so sums are exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Block
from tests.blocks import accepted

P = torch.tensor([3, 3, 2], dtype=torch.float64) / 8
Q = torch.tensor([1, 1, 2], dtype=torch.float64) / 4


def first_token(rule: Any, num: int = 240, q_3: Tensor = Q) -> Tensor:
    """Its distribution [3] for drafts from `q_3`, on `num` x `num` numbers for the test and for the draw behind it."""
    axis = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    uniforms, total = torch.cartesian_prod(axis, axis), torch.zeros(3, dtype=torch.float64)
    for x in range(3):
        ids = torch.full((len(uniforms), 1), x)
        logits, q = P.float().log().expand(len(ids), 2, 3), q_3.float().expand(len(ids), 1, 3)
        outcome = accepted(rule, Block(ids, ids >= 0, logits, q=q, uniforms=uniforms, greedy=False))
        tokens = torch.where(outcome.length == 1, x, outcome.own_ids)
        total += q_3[x] * torch.bincount(tokens, minlength=3) / len(tokens)
    return total
