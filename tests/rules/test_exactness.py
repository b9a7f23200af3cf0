"""Sampling is lossless: the outcome's distribution, summed over all drafts and all numbers, is the target's own.

Probabilities are eighths, draft probabilities quarters, so every threshold of the rule falls between two cells of the
grid that stands for the numbers, and the sums are exact up to rounding.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from gistgate.core.block import Block, Sampling
from gistgate.rules import RULES, make_rule
from tests.blocks import accepted
from tests.rules.extremes import BY_DISTRIBUTION, CLOSED, TARGET_ONLY

EIGHTHS = torch.tensor([[3, 3, 2], [1, 6, 1], [2, 2, 4], [0, 5, 3]]) / 8
"""p of the first token, and of the second behind each first one."""
QUARTERS = torch.tensor([[1, 1, 2], [1, 2, 1], [2, 1, 1], [2, 0, 2]]) / 4
"""q likewise."""
SAMPLED = [name for name, rule in RULES.items() if rule.temperatures != "greedy"]
"""Rules that are defined for sampling."""
WANTED = EIGHTHS[0, :, None] * EIGHTHS[1:]
"""Probability of every pair of tokens [3, 3]."""


def cells(num: int, dimensions: int) -> Tensor:
    """Midpoints of a grid over the unit cube [num ** dimensions, dimensions]."""
    axis = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    return torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)


def drafted(draft: tuple[int, ...], uniforms: Tensor, certain: bool) -> Block:
    """The same draft of up to two tokens in every row, judged with every combination of numbers."""
    rows = [EIGHTHS[0], *(EIGHTHS[1 + x] for x in draft)]
    batch = len(uniforms)
    ids = torch.tensor(draft, dtype=torch.long).expand(batch, len(draft))
    q = torch.stack([QUARTERS[0], *(QUARTERS[1 + x] for x in draft[:-1])]) if draft else torch.zeros(0, 3)
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
    """Probability of every first pair of tokens [3, 3], given the draft; a missing second token comes from p."""
    judged = drafted(draft, cells(num, len(draft) + 1), certain)
    outcome = accepted(rule, judged)
    texts = torch.cat([judged.draft_ids, torch.zeros(len(outcome.length), 2, dtype=torch.long)], dim=1)
    texts.scatter_(1, outcome.length[:, None], outcome.own_ids[:, None])
    first, second = texts[:, 0], texts[:, 1]
    after = torch.where(
        (outcome.length >= 1)[:, None], torch.nn.functional.one_hot(second, 3), EIGHTHS[1:][first]
    ).double()
    return torch.zeros(3, 3, dtype=torch.float64).index_add(0, first, after) / len(first)


@pytest.mark.parametrize("rule_id", SAMPLED)
def test_with_draft_probabilities(rule_id: str):
    rule, total = make_rule(rule_id, **CLOSED[rule_id]), torch.zeros(3, 3, dtype=torch.float64)
    for first, second in product(range(3), range(3)):
        weight = QUARTERS[0, first] * QUARTERS[1 + first, second]
        if weight > 0:
            total += weight * pairs(rule, (first, second), certain=False, num=24)
    # rules that ignore q or judge whole paths need fifths and sevenths, which this grid misses
    coarse = rule_id in TARGET_ONLY | BY_DISTRIBUTION
    assert torch.allclose(total, WANTED.double(), atol=0.02 if coarse else 1e-6)


@pytest.mark.parametrize("rule_id", [name for name in SAMPLED if "q" not in make_rule(name, **CLOSED[name]).needs])
@pytest.mark.parametrize("draft", [(), *product(range(3), repeat=1), *product(range(3), repeat=2)])
def test_with_a_draft_that_counts_as_certain(rule_id: str, draft: tuple[int, ...]):
    """Without probabilities any draft at all must leave the distribution alone."""
    rule = make_rule(rule_id, **CLOSED[rule_id])
    # 120 cells hold the fifths and thirds of the residuals; two drafted tokens need only the coarser test
    num, tolerance = (120, 1e-6) if len(draft) < 2 else (40, 0.02)
    assert torch.allclose(pairs(rule, draft, certain=True, num=num), WANTED.double(), atol=tolerance)


def test_a_loose_rule_is_noticed():
    loose = pairs(make_rule("prob", r=0.1), (2, 0), certain=True, num=40)
    assert not torch.allclose(loose, WANTED.double(), atol=0.05)


@pytest.mark.parametrize("sampling", [Sampling(0.5), Sampling(1.5, top_k=2), Sampling(1.0, top_p=0.8)])
def test_with_processors_the_processed_distribution_is_kept(sampling: Sampling):
    """Both sides go through the same processors before they are compared."""
    z, z_draft = torch.tensor([1.0, 0.3, -0.5]), torch.tensor([-0.2, 0.9, 0.4])
    p, q = sampling.logits(z).softmax(-1), sampling.logits(z_draft).softmax(-1)
    uniforms, total = cells(400, 2), torch.zeros(3, dtype=torch.float64)
    for x in range(3):
        ids = torch.full((len(uniforms), 1), x)
        logits = sampling.logits(z).expand(len(uniforms), 2, 3)
        judged = Block(ids, ids >= 0, logits, q=q.expand(len(ids), 1, 3), uniforms=uniforms, greedy=False)
        outcome = accepted(make_rule("exact"), judged)
        tokens = torch.where(outcome.length == 1, ids[:, 0], outcome.own_ids)
        total += q[x] * torch.bincount(tokens, minlength=3) / len(tokens)
    assert torch.allclose(total, p.double(), atol=0.006)
