"""The rule that counts what another rule would have accepted: exact inside a block, an estimate across blocks."""

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
from tests.blocks import SURE, TORN, block, random_block

ONE = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
"""The strict text advances by 2, a loose one by 4."""
RULE = Shadow(make_rule("prob", r=0.3))


def counted(rule: Shadow, *blocks: Block) -> dict[str, int]:
    """The counters of one row after these blocks."""
    state: State = {}
    for one in blocks:
        state = rule.advance(one, settle(rule, one, state), state)
    return {name: int(state[name]) for name in rule.counters}


@pytest.mark.parametrize(
    "r, num, expected",
    [
        (0.3, 1, (1, 4, 1, 1, 4, 1, 1)),  # the target refuses the second token, the rule would have kept all three
        (0.3, 4, (4, 16, 4, 2, 8, 2, 2)),  # every second block is judged, and what differs is counted in these alone
        (0.3, 5, (5, 20, 5, 3, 12, 3, 3)),
        (1.0, 2, (2, 4, 0, 2, 4, 0, 0)),  # a rule that keeps nothing more judges every block
    ],
)
def test_a_block_is_counted_exactly_where_the_loose_text_would_have_it(r: float, num: int, expected: tuple[int, ...]):
    names = ("blocks", "first", "differing", "judged", "tokens", "loose", "carried")
    found = counted(Shadow(make_rule("prob", r=r)), *[ONE] * num)
    assert found == {f"shadow_{name}": value for name, value in zip(names, expected, strict=True)}


@pytest.mark.parametrize(
    "blocks, judged",
    [
        # a longer draft behind a judged block is waited for once: the loose text of the first block ends 3 tokens
        # ahead, and the strict one gets there after one more block
        ([ONE, *[block(SURE[0], SURE[1], SURE[2], SURE[3], draft=[0, 1, 2])] * 3], [1, 1, 2, 3]),
        # a loose text of 3 tokens against strict blocks of 2: the third block begins at 4, behind place 3
        ([block(SURE[0], TORN, SURE[2], draft=[0, 1])] * 4, [1, 1, 2, 2]),
        ([ONE] * 5, [1, 1, 2, 2, 3]),
    ],
)
def test_the_next_block_is_judged_where_the_loose_one_would_have_ended(blocks: list[Block], judged: list[int]):
    assert [counted(RULE, *blocks[: num + 1])["shadow_judged"] for num in range(len(blocks))] == judged


def test_every_row_has_its_own_counts():
    """Three blocks of many rows, and each row alone."""
    rule, blocks = Shadow(make_rule("prob", r=0.05)), [random_block(seed=seed, batch=12) for seed in (1, 2, 3)]
    state: State = {}
    for one in blocks:
        state = rule.advance(one, settle(rule, one, state), state)
    for row in range(12):
        alone = counted(rule, *(one.of_rows(torch.tensor([row])) for one in blocks))
        assert alone == {name: int(state[name][row]) for name in rule.counters}
    assert state["shadow_first"].unique().numel() > 2 and state["shadow_loose"].unique().numel() > 1


def test_an_end_of_the_answer_is_the_own_token_of_its_block():
    """Behind the loosely accepted token the draft ends the answer, as the target does."""
    one = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2], protocol=torch.tensor([2]), ends=torch.tensor([2]))
    counts = counted(RULE, one)
    assert (counts["shadow_first"], counts["shadow_loose"], counts["shadow_carried"]) == (3, 1, 0)
    assert counts["shadow_differing"] == 1


def test_a_marker_that_ends_no_answer_is_a_token_like_others():
    one = block(SURE[0], SURE[1], SURE[2], SURE[3], draft=[0, 1, 2], protocol=torch.tensor([1]), ends=torch.tensor([3]))
    assert counted(RULE, one)["shadow_first"] == 4


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
    table = PairCounts()
    counted(Shadow(make_rule("csd", table="online", counts=table, min_count=0)), *[ONE] * 4)
    assert table.counts.tolist() == [2]


@pytest.mark.parametrize("rule_id", ["wisv", "reflective", "mars-margin", "block"])
def test_it_asks_for_what_the_watched_rule_asks_for(rule_id: str):
    rule = make_rule(rule_id)
    shadow = Shadow(rule)
    for name in ("needs", "verifier", "temperatures", "alternative"):
        assert getattr(shadow, name) == getattr(RULES[rule_id], name)
    assert rule_id == "reflective" or type(shadow.context(None, ())) is type(rule.context(None, ()))
    assert isinstance(Shadow(make_rule("wisv")).context(None, ()), Costs)
