"""The gate behind the mixture: both have to agree."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.learned import AutoJudge, EnsembleGate
from tests.blocks import accepted, block, random_block

Z = [math.log(0.5), math.log(0.3), math.log(0.2)]
Q = [[0.2, 0.6, 0.2]]
"""The mixture prefers token 1 below w = 0.667."""


@pytest.mark.parametrize(
    "w, risk, expected", [(0.5, 0.1, True), (0.7, 0.1, False), (0.5, 0.01, False), (0.0, 0.1, True)]
)
def test_a_mismatch_stays_where_mixture_and_gate_agree(w: float, risk: float, expected: bool):
    judged = block(Z, Z, draft=[1], q=Q, gate_probs=[0.95])
    assert EnsembleGate(risk, w).accept(judged, {}).tolist() == [[expected]]
    assert accepted(EnsembleGate(risk, w), judged).length.tolist() == [int(expected)]


def test_an_exact_match_stays_whatever_the_gate_says():
    judged = block(Z, Z, draft=[0], q=Q, gate_probs=[0.0])
    assert accepted(EnsembleGate(0.1, 0.5), judged).length.tolist() == [1]


def test_the_ends_of_the_range_are_settings():
    judged = block(Z, Z, draft=[1], q=Q, gate_probs=[0.0])
    assert EnsembleGate(1.0, 0.5).accept(judged, {}).tolist() == [[True]]
    assert EnsembleGate(1.0, 1.0).accept(judged, {}).tolist() == [[False]]


@pytest.mark.parametrize("rule", [EnsembleGate(0.25, 0.5), AutoJudge(0.25)])
def test_harm_as_probable_as_the_risk_is_tolerated(rule: EnsembleGate | AutoJudge):
    """0.25 and 0.75 have no rounding."""
    for probability, expected in ((0.75, True), (0.74, False)):
        assert rule.accept(block(Z, Z, draft=[1], q=Q, gate_probs=[probability]), {}).tolist() == [[expected]]


@pytest.mark.parametrize("risk", [-1.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_without_the_target_in_the_mixture_it_is_autojudge_for_a_greedy_draft(seed: int, risk: float):
    judged = random_block(seed, batch=300)
    judged = replace(judged, draft_ids=judged.q.argmax(-1))
    both, gate = accepted(EnsembleGate(risk, w=0.0), judged), accepted(AutoJudge(risk), judged)
    assert all(torch.equal(getattr(both, name), getattr(gate, name)) for name in ("length", "own_ids", "reasons"))
    strict = accepted(make_rule("exact"), judged)
    assert torch.equal(gate.length, strict.length) is (risk < 0)
