"""Fuzzy speculative decoding: a position is trusted or not, whatever its token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.divergence import DIVERGENCES, FSD, KLJudge
from tests.blocks import accepted, block, random_block
from tests.rules.enumerating import P, Q, first_token

Z = [math.log(0.5), math.log(0.25), math.log(0.25)]
CLOSE, FAR = [0.4, 0.35, 0.25], [0.05, 0.9, 0.05]
EXPECTED = {
    "js": (0.00697, 0.24073),
    "ag": (0.00702, 0.30694),
    "kl": (0.02851, 0.95724),
    "reverse-kl": (0.02745, 1.23342),
    "tv": (0.1, 0.65),
    "topk": (0.00697, 0.24073),
}
"""Div(p, q) for both drafts, computed apart from the code under test."""


def verdict(rule: FSD, draft: list[int], q: list[list[float]], **more: Any) -> list[bool]:
    return rule.accept(block(*[Z] * (len(draft) + 1), draft=draft, q=q, **more), {})[0].tolist()


@pytest.mark.parametrize("div", EXPECTED)
def test_sometimes(div: Any):
    close, far = EXPECTED[div]
    for factor, expected in ((0.95, [[False, False], [True, False]]), (1.05, [[True, False], [True, True]])):
        assert [verdict(FSD(one * factor, div), [1, 1], [CLOSE, FAR]) for one in (close, far)] == expected


def test_every_divergence_is_tested_above():
    assert set(EXPECTED) == set(DIVERGENCES)


def test_the_expected_values_are_those_of_torch():
    p, near, far = torch.tensor(Z).exp(), torch.tensor(CLOSE), torch.tensor(FAR)
    for index, q in enumerate((near, far)):
        m, kl = (p + q) / 2, lambda a, b: torch.nn.functional.kl_div(b.log(), a, reduction="sum").item()
        theirs = {"js": (kl(p, m) + kl(q, m)) / 2, "ag": (kl(m, p) + kl(m, q)) / 2, "kl": kl(q, p)}
        theirs |= {"reverse-kl": kl(p, q), "tv": (p - q).abs().sum().item() / 2, "topk": theirs["js"]}
        assert theirs == {div: pytest.approx(values[index], abs=1e-5) for div, values in EXPECTED.items()}


def test_the_token_does_not_matter():
    assert verdict(FSD(0.1), [0, 1, 2], [CLOSE] * 3) == [True] * 3
    assert verdict(FSD(0.1), [0, 1, 2], [FAR] * 3) == [False] * 3


def test_reduced_keeps_a_match_that_the_full_variant_refuses():
    judged = block(Z, Z, draft=[0], q=[FAR])
    assert accepted(FSD(0.1), judged).length.tolist() == [1]
    full = accepted(FSD(0.1, reduced=False), judged)
    assert full.length.tolist() == [0] and full.own_ids.tolist() == [0]


def test_greedy_both_variants_write_the_target_token_where_they_refuse():
    for seed in range(3):
        judged = random_block(seed, batch=200)
        for reduced in (True, False):
            outcome = accepted(FSD(0.2, reduced=reduced), judged)
            assert torch.equal(outcome.own_ids, judged.top_ids[torch.arange(200), outcome.length])


def test_the_reversed_kl_is_the_kl_judge_without_its_guard():
    judged = random_block(batch=300)
    for threshold in (0.2, 1.0, 3.0):
        ours = FSD(threshold, "reverse-kl").accept(judged, {})
        assert torch.equal(ours, KLJudge(threshold, max_p=1.0).accept(judged, {})) and ours.any() and not ours.all()


# Of p = 3/8, 3/8, 2/8 and q = 1/4, 1/4, 2/4 the total variation is 1/4.


def test_full_and_sampled_the_texts_are_the_draft_s_where_trusted_and_the_target_s_elsewhere():
    assert torch.allclose(first_token(FSD(0.26, "tv", reduced=False, replacement="p")), Q, atol=1e-6)
    assert torch.allclose(first_token(FSD(0.24, "tv", reduced=False, replacement="p")), P, atol=1e-6)


def test_reduced_and_sampled_the_residual_leaves_p_alone_where_nothing_is_trusted():
    assert torch.allclose(first_token(FSD(0.26, "tv")), Q, atol=1e-6)
    assert torch.allclose(first_token(FSD(0.24, "tv")), P, atol=1e-6)
    # as published: half of x = 2 is refused, and drawn from p
    wanted = torch.tensor([0.25, 0.25, 0.25]) + 0.25 * P
    assert torch.allclose(first_token(FSD(0.24, "tv", replacement="p")), wanted, atol=1e-6)


def test_with_the_residual_a_closed_threshold_is_lossless():
    for seed in range(3):
        judged = random_block(seed, batch=200, temperature=1.0)
        closed, exact = accepted(FSD(-1.0), judged), accepted(make_rule("exact"), judged)
        assert torch.equal(closed.length, exact.length) and torch.equal(closed.own_ids, exact.own_ids)
