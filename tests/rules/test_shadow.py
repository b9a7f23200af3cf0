"""The rule that counts what another rule would have accepted: exact inside a block, an estimate across blocks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.rule import State, settle
from gistgate.core.utils import UserError
from gistgate.measure.shadow import Shadow, until_end
from gistgate.rules import RULES, make_rule
from gistgate.rules.history import PairCounts
from gistgate.rules.learned import Costs
from tests.blocks import SURE, TORN, block, random_block, rows_of


def test_a_block_is_counted_exactly():
    """The target refuses the second token, the rule would have kept all three."""
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
    rule, state = Shadow(make_rule("prob", r=0.3)), {}
    accepted = settle(rule, one, state)
    assert accepted.length.tolist() == [1]
    counts = {name: int(value) for name, value in rule.advance(one, accepted, state).items()}
    assert counts["shadow_tokens"] == counts["shadow_first"] == 4
    assert (counts["shadow_loose"], counts["shadow_carried"], counts["shadow_differing"]) == (1, 1, 1)


def test_the_next_block_is_judged_where_the_loose_one_would_have_ended():
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
    rule, state, judged = Shadow(make_rule("prob", r=0.3)), {}, []
    for _ in range(5):  # the strict text advances by 2, a loose one by 4
        state = rule.advance(one, settle(rule, one, state), state)
        judged.append(int(state["shadow_judged"]))
    assert judged == [1, 1, 2, 2, 3]
    assert int(state["shadow_blocks"]) == 5 and int(state["shadow_tokens"]) == 12


def counted(rule: Shadow, *blocks: Block) -> dict[str, int]:
    """The counters of one row after these blocks."""
    state: State = {}
    for one in blocks:
        state = rule.advance(one, settle(rule, one, state), state)
    return {name: int(state[name]) for name in rule.counters}


def test_what_differs_is_counted_in_the_judged_blocks_alone():
    """The text advances by 2 and a loose one by 4, so every second block is judged."""
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
    assert counted(Shadow(make_rule("prob", r=0.3)), *[one] * 4) == {
        "shadow_blocks": 4, "shadow_first": 16, "shadow_differing": 4, "shadow_judged": 2, "shadow_tokens": 8,
        "shadow_loose": 2, "shadow_carried": 2,
    }  # fmt: skip


def test_a_rule_that_keeps_nothing_more_judges_every_block():
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
    assert counted(Shadow(make_rule("prob", r=1.0)), one, one) == {
        "shadow_blocks": 2, "shadow_first": 4, "shadow_differing": 0, "shadow_judged": 2, "shadow_tokens": 4,
        "shadow_loose": 0, "shadow_carried": 0,
    }  # fmt: skip


def test_a_longer_draft_behind_a_judged_block_is_waited_for_once():
    """The loose text of the first block ends 3 tokens ahead; the strict one gets there after one more block."""
    torn = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])  # strict 2 tokens, loose 4
    sure = block(SURE[0], SURE[1], SURE[2], SURE[3], draft=[0, 1, 2])  # 4 tokens either way
    rule = Shadow(make_rule("prob", r=0.3))
    assert [counted(rule, torn, *[sure] * more)["shadow_judged"] for more in range(4)] == [1, 1, 2, 3]


def test_every_row_has_its_own_counts():
    """Three blocks of many rows, and each row alone."""
    rule, blocks = Shadow(make_rule("prob", r=0.05)), [random_block(seed=seed, batch=12) for seed in (1, 2, 3)]
    state: State = {}
    for one in blocks:
        state = rule.advance(one, settle(rule, one, state), state)
    for row in range(12):
        alone = counted(rule, *(rows_of(one, torch.tensor([row])) for one in blocks))
        assert alone == {name: int(state[name][row]) for name in rule.counters}
    assert state["shadow_first"].unique().numel() > 2 and state["shadow_loose"].unique().numel() > 1


def test_the_block_after_next_is_judged_where_it_begins_behind_the_loose_text():
    """A loose text of 3 tokens against strict blocks of 2: the third block begins at 4, behind place 3."""
    one = block(SURE[0], TORN, SURE[2], draft=[0, 1])
    rule = Shadow(make_rule("prob", r=0.3))
    assert [counted(rule, *[one] * num)["shadow_judged"] for num in (1, 2, 3, 4)] == [1, 1, 2, 2]


def test_an_end_of_the_answer_is_the_own_token_of_its_block():
    """Behind the loosely accepted token the draft ends the answer, as the target does."""
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2], protocol=torch.tensor([2]), ends=torch.tensor([2]))
    counts = counted(Shadow(make_rule("prob", r=0.3)), one)
    assert (counts["shadow_first"], counts["shadow_loose"], counts["shadow_carried"]) == (3, 1, 0)
    assert counts["shadow_differing"] == 1


def test_a_marker_that_ends_no_answer_is_a_token_like_others():
    one = block(SURE[0], SURE[1], SURE[2], SURE[3], draft=[0, 1, 2], protocol=torch.tensor([1]), ends=torch.tensor([3]))
    assert counted(Shadow(make_rule("prob", r=0.3)), one)["shadow_first"] == 4


def test_lengths_end_in_front_of_a_token_that_ends_the_answer():
    one = block(*[SURE[0]] * 4, draft=[1, 2, 3])
    for ends, expected in (([2], [1]), ([3, 1], [0]), ([0], [3]), ([], [3])):
        judged = replace(one, ends=torch.tensor(ends, dtype=torch.long))
        assert until_end(judged, torch.tensor([3])).tolist() == expected
    assert until_end(replace(one, ends=torch.tensor([3])), torch.tensor([1])).tolist() == [1]
    assert until_end(one, torch.tensor([3])).tolist() == [3]
    empty = Block(torch.zeros(1, 0, dtype=torch.long), torch.zeros(1, 0).bool(), torch.zeros(1, 1, 4))
    assert until_end(replace(empty, ends=torch.tensor([1])), torch.tensor([0])).tolist() == [0]


def test_the_watched_rule_keeps_its_own_memory():
    """The bytes that `wisv` counts come from the blocks as it would have accepted them."""
    judged = replace(random_block(seed=2), cost=None)
    rule = Shadow(make_rule("wisv", risk=0.5, width=10))
    with pytest.raises(UserError, match="think markers"):
        Shadow(make_rule("trt-relaxed")).context(None, ())
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<think>": 4, "</think>": 5})
    assert Shadow(make_rule("trt-relaxed")).context(tokenizer, ("<think>", "</think>")).protocol_ids == (4, 5)
    state = rule.advance(judged, settle(rule, judged, {}), {})
    state = rule.advance(judged, settle(rule, judged, state), state)
    once = rule.rule.advance(judged, settle(rule.rule, judged, {}), {})["uplink_bytes"]
    assert torch.equal(state["rule.uplink_bytes"], once * state["shadow_judged"])
    assert state["shadow_judged"].unique().tolist() == [1, 2]  # blocks within a loose span are not met


def test_a_watched_table_counts_judged_blocks_alone():
    """The text advances by 2 and a loose one by 4, so that two of these four blocks are judged."""
    one, table = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2]), PairCounts()
    counted(Shadow(make_rule("csd", table="online", counts=table, min_count=0)), *[one] * 4)
    assert table.counts.tolist() == [2]


@pytest.mark.parametrize("rule_id", ["wisv", "reflective", "mars-margin", "block"])
def test_it_asks_for_what_the_watched_rule_asks_for(rule_id: str):
    rule = make_rule(rule_id)
    shadow = Shadow(rule)
    for name in ("needs", "verifier", "temperatures", "alternative"):
        assert getattr(shadow, name) == getattr(RULES[rule_id], name)
    assert rule_id == "reflective" or type(shadow.context(None, ())) is type(rule.context(None, ()))
    assert isinstance(Shadow(make_rule("wisv")).context(None, ()), Costs)
