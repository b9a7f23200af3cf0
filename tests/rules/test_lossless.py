"""Sampling is lossless by enumeration, and Block Verification keeps at least as much of a draft as
token by token.

tests/trees/test_walks.py sums Block Verification exactly, over all outcomes of its tests, as a walk
over chains.
"""

from itertools import product

import pytest
import torch

from gistgate.core.block import Block, Reason, Sampling
from gistgate.rules import RULES, make_rule
from gistgate.rules.lossless import passing, path_ratios
from tests.blocks import accepted, block, random_block
from tests.rules.enumerating import QUARTERS, WANTED, first_token, pairs
from tests.rules.extremes import BY_DISTRIBUTION, CLOSED, TARGET_ONLY

SAMPLED = [name for name, rule in RULES.items() if rule.temperatures != "greedy"]
"""Rules that are defined for sampling."""
RULE = make_rule("block")


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


@pytest.mark.parametrize(
    "rule_id", [name for name in SAMPLED if "q" not in make_rule(name, **CLOSED[name]).needs]
)
@pytest.mark.parametrize("draft", [(), *product(range(3), repeat=1), *product(range(3), repeat=2)])
def test_with_a_draft_that_counts_as_certain(rule_id: str, draft: tuple[int, ...]):
    """Without probabilities any draft at all must leave the distribution alone."""
    rule = make_rule(rule_id, **CLOSED[rule_id])
    # 120 cells hold the fifths and thirds of the residuals; two drafted tokens need only the
    # coarser test
    num, tolerance = (120, 1e-6) if len(draft) < 2 else (40, 0.02)
    assert torch.allclose(
        pairs(rule, draft, certain=True, num=num), WANTED.double(), atol=tolerance
    )


def test_a_loose_rule_is_noticed():
    loose = pairs(make_rule("prob", r=0.1), (2, 0), certain=True, num=40)
    assert not torch.allclose(loose, WANTED.double(), atol=0.05)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.5), Sampling(1.5, top_k=2), Sampling(1.0, top_p=0.8)]
)
def test_with_processors_the_processed_distribution_is_kept(sampling: Sampling):
    """Both sides go through the same processors before they are compared."""
    z, z_draft = torch.tensor([1.0, 0.3, -0.5]), torch.tensor([-0.2, 0.9, 0.4])
    p, q = sampling.logits(z).softmax(-1), sampling.logits(z_draft).softmax(-1)
    found = first_token(make_rule("exact"), 400, q, sampling.logits(z))
    assert torch.allclose(found, p.double(), atol=0.006)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_it_accepts_at_least_as_many_on_average(temperature: float):
    """Expected lengths, row by row; drafts are drawn from q, as the theorem wants."""
    whole = random_block(seed=4, batch=4000, num=6, temperature=temperature)
    assert whole.q is not None
    x = torch.multinomial(
        whole.q.flatten(0, 1), 1, generator=torch.Generator().manual_seed(1)
    ).view(-1, 6)
    drawn = Block(x, whole.valid, whole.logits, q=whole.q, uniforms=whole.uniforms, greedy=False)
    alive = (drawn.draft_logprob.exp() / drawn.draft_q).clamp_max(1).double() * drawn.valid
    strict = alive.cumprod(-1).sum(-1).mean()
    # P(length >= j) = 1 - prod_{i >= j} (1 - h_i)
    missed = (1 - passing(drawn) * drawn.valid).flip(-1).cumprod(-1).flip(-1)
    assert (1 - missed).sum(-1).mean() > strict * 1.01
    lengths = accepted(RULE, drawn).length.double()
    assert lengths.mean().item() == pytest.approx((1 - missed).sum(-1).mean().item(), abs=0.05)


def test_a_later_token_redeems_an_earlier_one():
    """p(x_1) / q(x_1) = 1/2, then 2: token by token x_1 is refused at u = 0.9; as a path its ratio
    is 1.
    """
    z = [torch.tensor(row).log().tolist() for row in ([0.25, 0.75], [0.5, 0.5], [0.5, 0.5])]
    judged = block(
        *z, draft=[0, 0], q=[[0.5, 0.5], [0.25, 0.75]], uniforms=[0.9, 0.9, 0.5], greedy=False
    )
    assert path_ratios(judged).tolist() == [[1.0, pytest.approx(0.5), pytest.approx(1.0)]]
    outcome = accepted(RULE, judged)
    assert accepted(make_rule("exact"), judged).length.tolist() == [0]
    assert outcome.length.tolist() == [2] and outcome.reasons.tolist() == [[Reason.STRICT] * 2]


def test_the_own_token_comes_from_the_path_s_residual():
    """P_1 = 1/2 and [p / 2 - q]_+ behind x_1 leaves token 0 alone, whatever the number."""
    p = [torch.tensor(row).log().tolist() for row in ([0.25, 0.75], [0.9, 0.1], [0.5, 0.5])]
    for number in (0.01, 0.99):
        judged = block(
            *p,
            draft=[0, 1],
            q=[[0.5, 0.5], [0.2, 0.8]],
            uniforms=[0.2, 0.999, number],
            greedy=False,
        )
        # S_1 = 0.45 - 0.2, h_1 = 0.25 / 0.75
        assert passing(judged)[0, 0].item() == pytest.approx(1 / 3, abs=1e-6)
        outcome = accepted(RULE, judged)
        assert outcome.length.tolist() == [1] and outcome.own_ids.tolist() == [0]


@pytest.mark.parametrize("with_q", [True, False])
def test_impossible_tokens_leak_no_nan(with_q: bool):
    for temperature in (0.3, 1.0):
        judged = random_block(seed=9, batch=300, temperature=temperature, with_q=with_q)
        h = passing(judged)
        assert ((h >= 0) & (h <= 1)).all()
    z = [0.0, 0.0, -torch.inf]
    never = block(
        z, z, z, draft=[2, 0], q=[[1.0, 0.0, 0.0]] * 2, uniforms=[1e-9, 1e-9, 0.5], greedy=False
    )
    assert passing(never).tolist() == [[0.0, 0.0]] and accepted(RULE, never).length.tolist() == [0]
    same = block(
        z, z, z, draft=[0, 1], q=[[0.5, 0.5, 0.0]] * 2, uniforms=[0.9999, 0.9999, 0.5], greedy=False
    )
    assert accepted(RULE, same).length.tolist() == [2]
