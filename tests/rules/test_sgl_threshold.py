"""SGLang's thresholds: target-only, lossless at 1 and 1, and two ways to loosen."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch

from gistgate.core.block import Block
from gistgate.rules import make_rule
from gistgate.rules.thresholds import SglThreshold
from tests.blocks import accepted, block, random_block
from tests.rules.test_exactness import EIGHTHS, cells

HALVES = [math.log(0.5), math.log(0.3), math.log(0.2), -99.0]


def sampled(x: int, u: float, draw: float = 0.5, q: list[list[float]] | None = None) -> Block:
    return block(HALVES, HALVES, draft=[x], uniforms=[u, draw], greedy=False, q=q)


@pytest.mark.parametrize("acc, u, expected", [(1.0, 0.29, 1), (1.0, 0.31, 0), (0.5, 0.59, 1), (0.5, 0.61, 0)])
def test_acc_inflates_the_probability(acc: float, u: float, expected: int):
    assert accepted(SglThreshold(acc=acc), sampled(1, u)).length.tolist() == [expected]


@pytest.mark.parametrize("single, expected", [(1.0, 0), (0.31, 0), (0.29, 1)])
def test_single_is_enough_without_luck(single: float, expected: int):
    assert accepted(SglThreshold(single=single), sampled(1, 0.999)).length.tolist() == [expected]
    greedy = block(HALVES, HALVES, draft=[1])
    assert accepted(SglThreshold(single=single), greedy).length.tolist() == [expected]


def test_draft_probabilities_are_ignored():
    q = [[0.4, 0.3, 0.3, 0.0]]
    assert accepted(make_rule("exact"), sampled(1, 0.9, q=q)).length.tolist() == [1]
    assert accepted(SglThreshold(), sampled(1, 0.9, q=q)).length.tolist() == [0]


def test_behind_a_refusal_p_without_the_refused_token_is_drawn_from():
    """0.5 and 0.2 remain: 5/7 and 2/7. With q the residual would be 0 alone."""
    q = [[0.2, 0.5, 0.3, 0.0]]
    for with_q in (None, q):
        own = [
            accepted(SglThreshold(), sampled(1, 0.9, draw / 7 - 1e-3, with_q)).own_ids.item() for draw in range(1, 8)
        ]
        assert own == [0, 0, 0, 0, 0, 2, 2]


def test_behind_a_whole_draft_the_bonus_comes_from_p():
    own = [accepted(SglThreshold(), sampled(0, 0.1, draw / 10 - 0.05)).own_ids.item() for draw in range(1, 11)]
    assert own == [0] * 5 + [1] * 3 + [2] * 2


@pytest.mark.parametrize("acc, warns", [(1.0, False), (0.5, True)])
def test_what_has_no_effect_is_said(acc: float, warns: bool):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        SglThreshold(acc=acc).accept(block(HALVES, HALVES, draft=[1]), {})
    assert [str(one.message) for one in said] == warns * [
        "sgl-threshold: acc has no effect when greedy; set single instead."
    ]


def test_closed_and_greedy_is_exact():
    judged = random_block(batch=300)
    outcome, strict = accepted(SglThreshold(), judged), accepted(make_rule("exact"), judged)
    assert torch.equal(outcome.length, strict.length) and torch.equal(outcome.own_ids, strict.own_ids)


@pytest.mark.parametrize("single", [1.0, 0.3, 0.1, 0.02])
def test_a_greedy_request_is_judged_as_by_prob(single: float):
    judged = random_block(batch=300)
    outcome, other = accepted(SglThreshold(single=single), judged), accepted(make_rule("prob", r=single), judged)
    assert all(torch.equal(getattr(outcome, name), getattr(other, name)) for name in ("length", "own_ids", "reasons"))
    assert torch.equal(outcome.length, accepted(make_rule("exact"), judged).length) is (single == 1)


@pytest.mark.parametrize("with_q", [True, False])
def test_closed_and_sampled_is_the_lossless_test_of_a_certain_draft(with_q: bool):
    """Token for token the rule `exact` of a drafter without probabilities."""
    judged = random_block(batch=300, temperature=1.0, with_q=with_q)
    outcome, strict = accepted(SglThreshold(), judged), accepted(make_rule("exact"), replace(judged, q=None))
    assert torch.equal(outcome.length, strict.length) and torch.equal(outcome.own_ids, strict.own_ids)


@pytest.mark.parametrize("x", [0, 1, 2])
def test_closed_and_sampled_any_draft_leaves_the_distribution_alone(x: int):
    """By enumeration, with a q that the draft was not drawn from."""
    uniforms = cells(120, 2)
    ids = torch.full((len(uniforms), 1), x)
    logits = EIGHTHS[:1].log().expand(len(ids), 2, 3)
    q = torch.tensor([0.1, 0.2, 0.7]).expand(len(ids), 1, 3)
    outcome = accepted(SglThreshold(), Block(ids, ids >= 0, logits, q=q, uniforms=uniforms, greedy=False))
    tokens = torch.where(outcome.length == 1, ids[:, 0], outcome.own_ids)
    assert torch.allclose(torch.bincount(tokens, minlength=3) / len(tokens), EIGHTHS[0], atol=1e-6)


def test_protocol_tokens_pass_the_lossless_test_only():
    steering = torch.tensor([1])
    for u, single in product((0.29, 0.31), (1.0, 0.01)):
        rule = SglThreshold(acc=0.1, single=single)
        # a q(x) below p(x) would let the native test of other rules pass at once
        judged = replace(sampled(1, u, q=[[0.8, 0.1, 0.1, 0.0]]), protocol=steering)
        assert accepted(rule, judged).length.tolist() == [int(u < 0.3)]
