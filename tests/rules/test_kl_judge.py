"""KL judge: the distance of the distributions decides, not the token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gistgate.rules.divergence import KLJudge
from tests.blocks import SPLIT, SURE, TORN, accepted, block, random_block

P = [math.log(0.5), math.log(0.25), math.log(0.25)]
CLOSE, FAR = [0.4, 0.35, 0.25], [0.05, 0.9, 0.05]
"""KL(p || q) of 0.027 and of 1.233 nats."""


def verdict(rule: KLJudge, *rows: list[float], draft: list[int], q: list[list[float]], **more: Any) -> list[bool]:
    return rule.accept(block(*rows, draft=draft, q=q, **more), {})[0].tolist()


@pytest.mark.parametrize(
    "tau, expected", [(-0.1, [False, False]), (0.02, [False, False]), (0.4, [True, False]), (1.3, [True, True])]
)
def test_sometimes(tau: float, expected: list[bool]):
    assert verdict(KLJudge(tau), P, P, P, draft=[1, 1], q=[CLOSE, FAR]) == expected


def test_the_divergence_is_that_of_the_target_from_the_draft():
    """KL(q || p) of FAR is 0.957 nats: between the two, the order shows."""
    assert verdict(KLJudge(1.1), P, P, draft=[1], q=[FAR]) == [False]


def test_a_sure_target_is_not_overruled_whatever_the_draft_says():
    q = [torch.tensor(SURE[0]).softmax(-1).tolist()]
    assert verdict(KLJudge(99.0), SURE[0], SURE[0], draft=[1], q=q) == [False]
    assert verdict(KLJudge(99.0, max_p=1.0), SURE[0], SURE[0], draft=[1], q=q) == [True]
    assert verdict(KLJudge(0.1), TORN, TORN, draft=[1], q=[torch.tensor(TORN).softmax(-1).tolist()]) == [True]


def test_where_both_agree_an_improbable_token_passes():
    q = [torch.tensor(SPLIT).softmax(-1).tolist()]
    assert verdict(KLJudge(0.1), SPLIT, SPLIT, draft=[3], q=q) == [True]


def test_the_divergence_is_finite_where_the_draft_forbids_and_zero_never_goes_below():
    assert verdict(KLJudge(30.0), P, P, draft=[1], q=[[0.0, 1.0, 0.0]]) == [True]
    assert verdict(KLJudge(-1e-9), P, P, draft=[1], q=[[0.5, 0.25, 0.25]]) == [False]


def test_a_forbidden_token_of_the_target_is_no_obstacle():
    z = [0.0, 0.0, -torch.inf]
    assert verdict(KLJudge(0.8), z, z, draft=[1], q=[[0.25, 0.25, 0.5]]) == [True]  # ln 2
    assert verdict(KLJudge(0.6), z, z, draft=[1], q=[[0.25, 0.25, 0.5]]) == [False]


def test_at_a_higher_temperature_both_are_flatter_and_closer():
    hot = [verdict(KLJudge(0.3, temperature=t), P, P, draft=[1], q=[FAR]) for t in (1.0, 4.0)]
    assert hot == [[False], [True]]
    judged = random_block(batch=100)
    as_is, unchanged = KLJudge().compared(judged), KLJudge(temperature=1 + 1e-7).compared(judged)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(as_is, unchanged, strict=True))


def test_both_distributions_are_compared_at_the_temperature():
    """At temperature 2 probabilities go as their roots."""
    p, q = KLJudge(temperature=2.0).compared(block(P, P, draft=[1], q=[FAR]))
    for found, plain in ((p, [0.5, 0.25, 0.25]), (q, FAR)):
        roots = torch.tensor(plain).sqrt()
        assert torch.allclose(found[0, 0], roots / roots.sum())


def test_the_divergence_and_the_probability_may_reach_their_limits():
    """p = (1/2, 1/4, 1/4) against itself: no divergence, and a largest probability of a half."""
    judged = block([math.log(4.0), math.log(2.0), math.log(2.0)], P, draft=[1], q=[[0.5, 0.25, 0.25]])
    p, _ = KLJudge().compared(judged)
    assert KLJudge(0.0, max_p=float(p.max())).accept(judged, {}).tolist() == [[True]]
    assert KLJudge(0.0, max_p=0.49).accept(judged, {}).tolist() == [[False]]


def test_a_match_stays_whatever_the_divergence():
    assert accepted(KLJudge(-1.0), block(P, P, draft=[0], q=[FAR])).length.tolist() == [1]
