"""Rules that ask a gate: Judge and AutoJudge, their union with the mixture, and WISV with its costs
and bytes.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.learned import AutoJudge, EnsembleGate, Judge, Wisv
from tests.blocks import SURE, accepted, block, random_block

Z = [math.log(0.5), math.log(0.3), math.log(0.2)]
Q = [[0.2, 0.6, 0.2]]
"""The mixture prefers token 1 below w = 0.667."""
DOUBT = block(*[SURE[0]] * 4, draft=[1, 2, 3], gate_probs=[0.96, 0.9, 0.7])
"""P(harm) 0.04, 0.1 and 0.3, each a mismatch."""


@pytest.mark.parametrize(
    "rule, num",
    [
        (Judge(1.0), 0),
        (Judge(0.96), 0),
        (Judge(0.9), 1),
        (Judge(0.5), 1),
        (Judge(0.3), 2),
        (Judge(0.0), 3),
    ]
    + [(AutoJudge(0.0), 0), (AutoJudge(0.05), 1), (AutoJudge(0.6), 2)],
)
def test_the_gate_decides(rule: Any, num: int):
    """More than delta, not as much; a risk as high as the limit, and not more."""
    judged = block(*[SURE[0]] * 4, draft=[1, 2, 3], gate_probs=[0.96, 0.5, 0.1])
    assert rule.accept(judged).tolist() == [[place < num for place in range(3)]]


def test_a_certain_gate_is_not_enough_for_the_strict_setting_and_one_that_does_not_know_never_is():
    assert not Judge(1.0).accept(block(SURE[0], SURE[0], draft=[1], gate_probs=[1.0 + 1e-6])).any()
    for rule in (Judge(0.0), AutoJudge(1.0)):
        assert not rule.accept(block(SURE[0], SURE[0], draft=[1], gate_probs=[math.nan])).any()


@pytest.mark.parametrize(
    "one, other", [(Judge(0.7), AutoJudge(0.3)), (Wisv(risk=0.2), AutoJudge(0.2))]
)
def test_judge_is_autojudge_with_the_sign_turned_and_wisv_is_autojudge_without_costs(
    one: Any, other: Any
):
    judged = replace(random_block(batch=300), cost=None)
    lengths = [accepted(rule, judged).length for rule in (one, other)]
    assert (
        torch.equal(*lengths) and (lengths[0] > accepted(make_rule("exact"), judged).length).any()
    )


@pytest.mark.parametrize(
    "w, risk, gate, expected",
    [
        (0.5, 0.1, 0.95, True),
        (0.7, 0.1, 0.95, False),
        (0.5, 0.01, 0.95, False),
        (0.0, 0.1, 0.95, True),
        (0.5, 1.0, 0.0, True),  # the ends of the range are settings
        (1.0, 1.0, 0.0, False),
    ],
)
def test_a_mismatch_stays_where_mixture_and_gate_agree(
    w: float, risk: float, gate: float, expected: bool
):
    judged = block(Z, Z, draft=[1], q=Q, gate_probs=[gate])
    assert EnsembleGate(risk, w).accept(judged).tolist() == [[expected]]
    assert accepted(EnsembleGate(risk, w), judged).length.tolist() == [int(expected)]


@pytest.mark.parametrize("risk", [-1.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_without_the_target_in_the_mixture_it_is_autojudge_for_a_greedy_draft(
    seed: int, risk: float
):
    judged = random_block(seed, batch=300)
    judged = replace(judged, draft_ids=judged.q.argmax(-1))
    both, gate = accepted(EnsembleGate(risk, w=0.0), judged), accepted(AutoJudge(risk), judged)
    assert all(
        torch.equal(getattr(both, name), getattr(gate, name))
        for name in ("length", "own_ids", "reasons")
    )
    assert torch.equal(gate.length, accepted(make_rule("exact"), judged).length) is (risk < 0)


@pytest.mark.parametrize(
    "cost, limit, num",
    [
        (None, 1.0, 1),
        (0.0, 1.0, 1),
        (0.4, 1.0, 1),  # 0.05 + 0.04
        (0.6, 1.0, 2),  # 0.05 + 0.06
        (1.0, 1.0, 2),
        (1.0, 0.08, 1),
        (1.0, 0.03, 0),
    ],
)
def test_the_cost_loosens_up_to_the_limit(cost: float | None, limit: float, num: int):
    judged = DOUBT if cost is None else replace(DOUBT, cost=torch.tensor([cost]))
    assert Wisv(kappa=0.1, limit=limit).accept(judged).tolist() == [
        [place < num for place in range(3)]
    ]
