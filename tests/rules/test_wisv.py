"""WISV: the cost loosens the gate within its limit, and every byte of the uplink is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.request import Row
from gistgate.core.rule import State, settle
from gistgate.rules import make_rule
from gistgate.rules.learned import Wisv
from tests.blocks import SURE, accepted, block, random_block, rows_of

DOUBT = block(*[SURE[0]] * 4, draft=[1, 2, 3], gate_probs=[0.96, 0.9, 0.7])
"""P(harm) 0.04, 0.1 and 0.3, each a mismatch."""


@pytest.mark.parametrize(
    "cost, limit, expected",
    [
        (None, 1.0, [True, False, False]),
        (0.0, 1.0, [True, False, False]),
        (0.4, 1.0, [True, False, False]),  # 0.05 + 0.04
        (0.6, 1.0, [True, True, False]),  # 0.05 + 0.06
        (1.0, 1.0, [True, True, False]),
        (1.0, 0.08, [True, False, False]),
        (1.0, 0.03, [False, False, False]),
    ],
)
def test_the_cost_loosens_up_to_the_limit(cost: float | None, limit: float, expected: list[bool]):
    judged = DOUBT if cost is None else replace(DOUBT, cost=torch.tensor([cost]))
    assert Wisv(kappa=0.1, limit=limit).accept(judged, {}).tolist() == [expected]


def test_every_row_pays_its_own_cost():
    whole = Block(
        torch.ones(3, 1, dtype=torch.long),
        torch.ones(3, 1, dtype=torch.bool),
        torch.tensor([SURE[0]] * 2).expand(3, 2, 4),
        gate_probs=torch.full((3, 1), 0.9),
        cost=torch.tensor([0.0, 0.7, 0.2]),
    )
    assert accepted(Wisv(kappa=0.1), whole).length.tolist() == [0, 1, 0]


def test_costs_are_read_from_the_requests():
    """Nothing where no request names one, so that a compiled round needs no tensor of zeros."""
    context, judged = Wisv().context(None, ()), random_block(batch=3)
    rows = [Row(index, [5], 1, cost=cost) for index, cost in enumerate((0.5, None, 1.0))]
    assert context.fields(judged, rows)["cost"].tolist() == [0.5, 0.0, 1.0]
    assert context.fields(judged, rows[1:2]) == {}


def test_below_0_no_cost_opens_the_gate():
    judged = replace(DOUBT, cost=torch.ones(1), gate_probs=torch.ones(1, 3))
    assert not Wisv(risk=-0.01, kappa=5.0).accept(judged, {}).any()


def test_without_costs_it_is_autojudge():
    judged = replace(random_block(batch=300), cost=None)
    lengths = [accepted(rule, judged).length for rule in (Wisv(risk=0.2), make_rule("autojudge", risk=0.2))]
    assert torch.equal(*lengths) and (lengths[0] > accepted(make_rule("exact"), judged).length).any()


def uplink(rule: Wisv, *blocks: Block) -> list[int]:
    state: State = {}
    for judged in blocks:
        state = rule.advance(judged, settle(rule, judged, state), state)
    assert all(name in state for name in rule.counters)
    return state["uplink_bytes"].tolist()


@pytest.mark.parametrize(
    "upload, expected",
    [
        ("all", 3 * 4 + 3 * 20),
        ("mismatch", 3 * 4 + 2 * 20),  # one of the three is a match
    ],
)
def test_ids_always_and_states_of_all_or_of_mismatches(upload: Any, expected: int):
    """Ten numbers of two bytes per state; what lies behind the draft's end is not sent."""
    judged = block(*[SURE[0]] * 5, draft=[1, 0, 2, 3], valid=3, gate_probs=[0.9] * 4)
    rule = Wisv(upload=upload, width=10)
    assert uplink(rule, judged) == [expected]
    assert uplink(rule, judged, judged) == [2 * expected]


def test_every_row_sends_its_own_bytes():
    judged = replace(random_block(batch=8), cost=None)
    state = Wisv(upload="mismatch", width=10).advance(judged, accepted(Wisv(), judged), {})
    for row in range(8):
        alone = rows_of(judged, torch.tensor([row]))
        assert uplink(Wisv(upload="mismatch", width=10), alone) == [int(state["uplink_bytes"][row])]
    assert len(set(state["uplink_bytes"].tolist())) > 4


@pytest.mark.parametrize("settings", [{"kappa": 0.0}, {"limit": 0.0}, {"width": 0}, {"risk": 1.0}])
def test_the_ends_of_the_ranges_are_settings(settings: dict[str, Any]):
    assert Wisv(**settings).accept(DOUBT, {}).shape == (1, 3)


def test_without_a_draft_nothing_is_sent():
    empty = Block(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool), torch.zeros(2, 1, 4))
    assert Wisv().advance(empty, accepted(make_rule("exact"), empty), {})["uplink_bytes"].tolist() == [0, 0]


def test_the_upload_changes_the_counter_only():
    judged = random_block(batch=200)
    both = [Wisv(risk=0.3, upload=upload) for upload in ("all", "mismatch")]
    assert torch.equal(*[accepted(rule, judged).length for rule in both])
    everything, mismatches = (torch.tensor(uplink(rule, judged)) for rule in both)
    assert (everything >= mismatches).all() and (everything > mismatches).any()
