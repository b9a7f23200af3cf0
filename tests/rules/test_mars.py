"""MARS: the two best tokens of an undecided target, by ratio and by margin of their logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gistgate.rules.thresholds import Mars, MarsMargin
from tests.blocks import SURE, accepted, block, random_block

NEAR, WIDE = [10.0, 9.5, 9.4, 1.0], [10.0, 8.0, 7.0, 1.0]
"""Ratios 0.95 and 0.8, margins 0.5 and 2."""


def verdict(rule: Any, *rows: list[float], draft: list[int]) -> list[bool]:
    return rule.accept(block(*rows, draft=draft), {})[0].tolist()


@pytest.mark.parametrize(
    "rule, expected",
    [
        (Mars(), [True, False, False]),
        (Mars(0.99), [False, False, False]),
        (Mars(0.79), [True, False, True]),
        (Mars(0.8), [True, False, False]),
        (MarsMargin(), [True, False, False]),
        (MarsMargin(0.4), [False, False, False]),
        (MarsMargin(2.0), [True, False, True]),
        (MarsMargin(-1.0), [False, False, False]),
    ],
)
def test_sometimes_the_second_never_the_third(rule: Any, expected: list[bool]):
    assert verdict(rule, NEAR, NEAR, WIDE, NEAR, draft=[1, 2, 1]) == expected


@pytest.mark.parametrize("rule", [Mars(), MarsMargin()])
def test_never_against_a_sure_target_always_a_match(rule: Any):
    assert accepted(rule, block(SURE[0], SURE[0], draft=[1])).length.tolist() == [0]
    assert accepted(rule, block(SURE[0], WIDE, NEAR, SURE[1], draft=[0, 0, 0])).length.tolist() == [3]


def test_the_ratio_depends_on_the_origin_of_the_logits_and_the_margin_does_not():
    """The published ratio opens at 7 : 1 when logits are negative; no setting but infinity is strict there."""
    shifted = [-1.0, -3.0, -9.0, -9.0]
    assert verdict(Mars(1.0), shifted, shifted, draft=[1]) == [True]
    assert verdict(Mars(math.inf), shifted, shifted, draft=[1]) == [False]
    for shift in (0.0, -20.0, 20.0):
        row = [z + shift for z in NEAR]
        assert verdict(MarsMargin(0.51), row, row, draft=[1]) == [True]
        assert verdict(MarsMargin(0.49), row, row, draft=[1]) == [False]


def test_temperature_cancels_in_the_ratio_alone():
    halved = [z / 0.5 for z in NEAR]
    assert verdict(Mars(), halved, halved, draft=[1]) == [True]
    assert verdict(MarsMargin(0.5), halved, halved, draft=[1]) == [False]
    assert verdict(MarsMargin(1.0), halved, halved, draft=[1]) == [True]


@pytest.mark.parametrize("top", [3.0, -3.0, 0.0])
@pytest.mark.parametrize("rule", [Mars(-1e9), MarsMargin(1e9)])
def test_a_second_token_that_is_forbidden_never_stays(rule: Any, top: float):
    alone = [top, -torch.inf, -torch.inf, -torch.inf]
    assert accepted(rule, block(alone, alone, draft=[1])).length.tolist() == [0]
    assert accepted(rule, block(alone, alone, draft=[0])).length.tolist() == [1]


@pytest.mark.parametrize("rule", [Mars(-1e9), MarsMargin(1e9)])
def test_wide_open_it_keeps_the_two_best_and_no_more(rule: Any):
    judged = random_block(batch=300)
    possible = judged.draft_logprob > -torch.inf
    second_possible = judged.logits[:, :-1].topk(2).values[..., 1] > -torch.inf
    opinion = rule.accept(judged, {})
    assert not (opinion & (judged.draft_rank >= 2)).any()
    assert torch.equal(opinion & possible & second_possible, possible & second_possible & (judged.draft_rank < 2))


@pytest.mark.parametrize("rule", [Mars(), MarsMargin()])
def test_sampling_keeps_a_refused_top_token_only_where_the_gate_is_open(rule: Any):
    """The native test refuses t* here: u q = 0.999 exceeds p."""
    for row, length in ((NEAR, 1), (WIDE, 0)):
        judged = block(row, row, draft=[0], uniforms=[0.999, 0.5], greedy=False)
        assert accepted(rule, judged).length.tolist() == [length]
