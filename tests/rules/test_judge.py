"""Judge Decoding: the gate's probability decides, high is good."""

from __future__ import annotations

import math

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.learned import Judge
from tests.blocks import SURE, accepted, block, random_block


@pytest.mark.parametrize(
    "delta, expected",
    [
        (1.0, [False, False, False]),
        (0.96, [False, False, False]),  # more than delta, not as much
        (0.9, [True, False, False]),
        (0.5, [True, False, False]),
        (0.3, [True, True, False]),
        (0.0, [True, True, True]),
    ],
)
def test_the_gate_decides(delta: float, expected: list[bool]):
    judged = block(*[SURE[0]] * 4, draft=[1, 2, 3], gate_probs=[0.96, 0.5, 0.1])
    assert Judge(delta).accept(judged, {}).tolist() == [expected]


def test_a_certain_gate_is_not_enough_for_the_strict_setting():
    judged = block(SURE[0], SURE[0], draft=[1], gate_probs=[1.0 + 1e-6])
    assert not Judge(1.0).accept(judged, {}).any()


def test_a_gate_that_does_not_know_accepts_nothing():
    assert not Judge(0.0).accept(block(SURE[0], SURE[0], draft=[1], gate_probs=[math.nan]), {}).any()


def test_judge_is_autojudge_with_the_sign_turned():
    judged = random_block(batch=300)
    lengths = [accepted(rule, judged).length for rule in (Judge(0.7), make_rule("autojudge", risk=0.3))]
    assert torch.equal(*lengths) and (lengths[0] > accepted(make_rule("exact"), judged).length).any()
