"""Regret budget: what a request has spent follows it from block to block."""

from __future__ import annotations

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.rule import State, settle
from gistgate.rules import make_rule
from gistgate.rules.history import RegretBudget, regret
from tests.blocks import SURE, accepted, block, random_block

ONE = [3.0, 2.0, 0.5, -torch.inf]
"""Regret 0 for 0, 1 for 1, 2.5 for 2; 3 is forbidden."""


def rounds(rule: RegretBudget, *blocks: Block) -> tuple[list[int], list[float]]:
    """Accepted lengths of a single request, and what it had spent after each block."""
    state: State = {}
    lengths, spent = [], []
    for judged in blocks:
        acceptance = settle(rule, judged, state)
        state = rule.advance(judged, acceptance, state)
        lengths += acceptance.length.tolist()
        spent += state["spent"].tolist()
    return lengths, spent


def whole(*draft: int) -> Block:
    return block(*[ONE] * (len(draft) + 1), draft=list(draft))


@pytest.mark.parametrize(
    "budget, expected", [(0.0, [0, 0, 0]), (0.9, [0, 0, 0]), (1.1, [1, 0, 1]), (2.4, [2, 0, 2]), (4.6, [2, 1, 3])]
)
def test_the_budget_ends_the_block(budget: float, expected: list[int]):
    drafts = (1, 1, 3), (2, 2), (1, 1, 2)
    assert [accepted(RegretBudget(budget), whole(*draft)).length.item() for draft in drafts] == expected


def test_every_position_is_compared_with_its_own_best_token():
    other = [0.0, 4.0, 1.0, -torch.inf]  # regret 3 for 2
    judged = block(ONE, other, ONE, draft=[1, 2])
    assert rounds(RegretBudget(4.5), judged) == ([2], [pytest.approx(4.0)])
    assert rounds(RegretBudget(3.5), judged) == ([1], [pytest.approx(1.0)])


def test_a_budget_may_be_spent_to_the_last():
    even = [1.0, 0.0, -torch.inf, -torch.inf]
    judged = block(even, even, even, draft=[1, 1])
    cost = float(regret(judged)[0, 0])
    assert rounds(RegretBudget(cost), judged)[0] == [1]


def test_what_strict_decoding_accepts_and_what_was_not_drafted_cost_nothing():
    judged = block(ONE, ONE, ONE, ONE, draft=[0, 1, 2], valid=2)
    assert regret(judged).tolist() == [[0.0, pytest.approx(1.0), 0.0]]


def test_a_match_costs_nothing():
    assert rounds(RegretBudget(1.1), whole(0, 1, 0, 0, 1)) == ([4], [pytest.approx(1.0)])


def test_what_is_spent_is_gone():
    lengths, spent = rounds(RegretBudget(2.1), whole(1), whole(2), whole(1), whole(1), whole(0, 0))
    assert lengths == [1, 0, 1, 0, 2]
    assert spent == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0])


def test_only_what_was_accepted_is_booked():
    """Neither behind a refusal nor behind the end of the draft."""
    assert rounds(RegretBudget(1.1), whole(1, 2, 1))[1] == pytest.approx([1.0])
    short = block(ONE, ONE, ONE, draft=[1, 1], valid=1)
    assert rounds(RegretBudget(9.0), short) == ([1], [pytest.approx(1.0)])


def test_without_a_draft_nothing_is_spent():
    assert rounds(RegretBudget(), whole()) == ([0], [0.0])


def test_every_row_has_its_own_purse():
    judged = Block(
        torch.tensor([[1], [1]]), torch.ones(2, 1, dtype=torch.bool), torch.tensor([ONE, ONE]).expand(2, 2, 4)
    )
    state = {"spent": torch.tensor([0.5, 1.5])}
    acceptance = settle(RegretBudget(2.0), judged, state)
    assert acceptance.length.tolist() == [1, 0]
    assert RegretBudget(2.0).advance(judged, acceptance, state)["spent"].tolist() == pytest.approx([1.5, 1.5])


def test_no_budget_lets_no_tie_pass():
    tie = block([1.0, 1.0, 0.0], SURE[0][:3], draft=[1])
    assert accepted(RegretBudget(0.0), tie).length.tolist() == [0]
    assert accepted(RegretBudget(0.1), tie).length.tolist() == [1]


@pytest.mark.parametrize("budget", [0.5, 3.0, 1e30])
def test_a_forbidden_token_neither_passes_nor_breaks_the_sum(budget: float):
    for seed in range(4):
        judged = random_block(seed, batch=300)
        acceptance = accepted(RegretBudget(budget), judged)
        state = RegretBudget(budget).advance(judged, acceptance, {})
        assert state["spent"].shape == (300,) and (state["spent"] <= budget).all()
        assert (acceptance.length > accepted(make_rule("exact"), judged).length).any()


def test_a_request_never_spends_more_than_its_budget():
    rule, state = RegretBudget(3.0), {}
    for seed in range(20):
        judged = random_block(seed, batch=64)
        state = rule.advance(judged, settle(rule, judged, state), state)
    assert (state["spent"] <= 3.0 + 1e-5).all() and (state["spent"] > 2.0).any()
