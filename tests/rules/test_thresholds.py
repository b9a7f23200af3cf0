"""Never, always, sometimes: the controls, the blind one and the learned gate."""

from __future__ import annotations

import math

import pytest
import torch

from gistgate.rules import make_rule
from tests.blocks import SPLIT, SURE, TORN, block, random_block


@pytest.mark.parametrize("rule_id, settings", [("prob", {"r": 0.3}), ("prob-ratio", {"r": 0.3}), ("top-k", {"k": 3})])
def test_never_a_token_the_target_finds_absurd(rule_id: str, settings: dict[str, float]):
    assert not make_rule(rule_id, **settings).accept(block(SPLIT, SPLIT, SPLIT, draft=[3, 3]), {}).any()


@pytest.mark.parametrize("rule_id, settings", [("prob", {"r": 0.3}), ("prob-ratio", {"r": 0.9}), ("top-k", {"k": 2})])
def test_always_the_tokens_of_an_even_split(rule_id: str, settings: dict[str, float]):
    assert make_rule(rule_id, **settings).accept(block(TORN, TORN, TORN, draft=[0, 1]), {}).all()


def test_prob_sometimes():
    # p = 0.5, 0.3, 0.2
    z = [math.log(0.5), math.log(0.3), math.log(0.2), -99.0]
    judged = block(z, z, z, z, draft=[0, 1, 2])
    assert make_rule("prob", r=0.25).accept(judged, {}).tolist() == [[True, True, False]]
    assert make_rule("prob", r=0.15).accept(judged, {}).tolist() == [[True, True, True]]
    assert make_rule("prob-ratio", r=0.59).accept(judged, {}).tolist() == [[True, True, False]]
    assert make_rule("prob-ratio", r=0.39).accept(judged, {}).tolist() == [[True, True, True]]
    assert make_rule("top-k", k=2).accept(judged, {}).tolist() == [[True, True, False]]


@pytest.mark.parametrize("rule_id, knob", [("prob", "r"), ("sgl-threshold", "single")])
def test_a_probability_of_the_threshold_is_enough(rule_id: str, knob: str):
    """Of two equal tokens each has exactly one half."""
    even = [0.0, 0.0, -torch.inf, -torch.inf]
    judged = block(even, even, draft=[1])
    for value, expected in ((0.5, True), (0.51, False)):
        assert make_rule(rule_id, **{knob: value}).accept(judged, {}).tolist() == [[expected]]


def test_random_tolerates_its_share_and_the_same_ones_again():
    judged = random_block(batch=4000)
    share = make_rule("random", rate=0.3).accept(judged, {}).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.01)
    again = random_block(batch=4000)
    assert torch.equal(
        make_rule("random", rate=0.3).accept(judged, {}), make_rule("random", rate=0.3).accept(again, {})
    )


def test_random_is_as_free_where_the_native_test_refused():
    """The number that refused a token is large; the blind choice must not see that."""
    judged = random_block(batch=8000, temperature=1.0)
    refused = judged.valid & ~judged.strict
    share = make_rule("random", rate=0.3).accept(judged, {})[refused].float().mean().item()
    assert share == pytest.approx(0.3, abs=0.015)


@pytest.mark.parametrize(
    "risk, expected", [(0.0, [False, False, False]), (0.05, [True, False, False]), (0.6, [True, True, False])]
)
def test_the_gate_decides_by_its_risk(risk: float, expected: list[bool]):
    judged = block(*[SURE[0]] * 4, draft=[1, 2, 3], gate_probs=[0.96, 0.5, 0.1])
    assert make_rule("autojudge", risk=risk).accept(judged, {}).tolist() == [expected]


def test_a_gate_that_does_not_know_accepts_nothing():
    judged = block(SURE[0], SURE[0], draft=[1], gate_probs=[math.nan])
    assert not make_rule("autojudge", risk=1.0).accept(judged, {}).any()
