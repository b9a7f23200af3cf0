"""Shadow mode: strict ids whatever the rule, exact counts inside a block, an estimate across
blocks.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.block import Block, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import total
from gistgate.core.rule import State, settle
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.shadow import Shadow, shadow, summary
from gistgate.rules import RULES, make_rule
from gistgate.rules.history import PairCounts
from gistgate.trees.drafter import TreeDrafter
from tests.architectures import pair, prompts
from tests.blocks import SURE, TORN, block, random_block
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE, LOSSLESS

BATCH = prompts(5, 9, 2)


def decoder(rule_id: str, noise: float = 0.03, **settings: Any) -> Decoder:
    target, draft = pair("llama", noise=noise)
    rule = make_rule(rule_id, **settings)
    return Decoder(target, ModelDrafter(draft), rule, 4, gate=HalfGate(), tokenizer=Markers())


@pytest.mark.parametrize("rule_id", RULES)
def test_ids_are_those_of_strict_verification(rule_id: str):
    """Although the watched rule would keep loose tokens, unless it is lossless."""
    watched = decoder(rule_id, noise=0.1, **LOOSE.get(rule_id, {}))
    exact = decoder("exact", noise=0.1)
    sampling = Sampling(0.0 if watched.rule.temperatures != "sampled" else 1.0)
    strict = exact.generate(BATCH, max_new_tokens=24, sampling=sampling)
    shadowed = shadow(watched).generate(BATCH, max_new_tokens=24, sampling=sampling)
    assert [row.ids for row in shadowed] == [row.ids for row in strict]
    assert all(row.statistics.loose == 0 for row in shadowed)
    assert any(row.statistics.extra["shadow_loose"] for row in shadowed) == (
        rule_id not in LOSSLESS
    )


def test_a_shadow_that_agrees_with_the_target_estimates_the_real_tau():
    """A rule that accepts nothing more gives exactly the strict rounds."""
    rows = shadow(decoder("prob", r=1.0)).generate(BATCH, max_new_tokens=40)
    counted = total([row.statistics for row in rows])
    tau = f"{counted.mean_accepted_length:.2f}"
    assert f"tau {tau} estimated for the rule instead of {tau}, 0.0 loose" in summary(counted)
    assert counted.extra["shadow_differing"] == 0


def test_what_has_no_shadow_is_refused():
    with pytest.raises(UserError, match="chains of drafts"):
        shadow(Decoder(pair("llama")[0], None, make_rule("exact")))
    target, draft = pair("llama")
    with pytest.raises(UserError, match="chains of drafts"):
        shadow(Decoder(target, TreeDrafter(draft), make_rule("prob", r=0.1), 4))


# What is counted of blocks made by hand

ONE = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2])
"""The strict text advances by 2, a loose one by 4."""
RULE = Shadow(make_rule("prob", r=0.3))


def counted(rule: Shadow, *blocks: Block) -> dict[str, int]:
    """The counters of one row after these blocks."""
    state: State = {}
    for drafted in blocks:
        state = rule.advance(drafted, settle(rule, drafted, state), state)
    return {name: int(state[name]) for name in rule.counters}


@pytest.mark.parametrize(
    "r, num, expected",
    [
        # the target refuses the second token, the rule would have kept all three
        (0.3, 1, (1, 4, 1, 1, 4, 1, 1)),
        # every second block is judged, and what differs is counted in these alone
        (0.3, 4, (4, 16, 4, 2, 8, 2, 2)),
        (0.3, 5, (5, 20, 5, 3, 12, 3, 3)),
        # a rule that keeps nothing more judges every block
        (1.0, 2, (2, 4, 0, 2, 4, 0, 0)),
    ],
)
def test_a_block_is_counted_exactly_where_the_loose_text_would_have_it(
    r: float, num: int, expected: tuple[int, ...]
):
    names = ("blocks", "first", "differing", "judged", "tokens", "loose", "carried")
    counts = counted(Shadow(make_rule("prob", r=r)), *[ONE] * num)
    assert counts == {f"shadow_{name}": value for name, value in zip(names, expected, strict=True)}


@pytest.mark.parametrize(
    "blocks, judged",
    [
        # a longer draft behind a judged block is waited for once: the loose text of the first block
        # ends 3 tokens ahead, and the strict one gets there after one more block
        ([ONE, *[block(SURE[0], SURE[1], SURE[2], SURE[3], draft=[0, 1, 2])] * 3], [1, 1, 2, 3]),
        # a loose text of 3 tokens against strict blocks of 2: the third block begins at 4, behind
        # place 3
        ([block(SURE[0], TORN, SURE[2], draft=[0, 1])] * 4, [1, 1, 2, 2]),
        ([ONE] * 5, [1, 1, 2, 2, 3]),
    ],
)
def test_the_next_block_is_judged_where_the_loose_one_would_have_ended(
    blocks: list[Block], judged: list[int]
):
    counts = [counted(RULE, *blocks[:num]) for num in range(1, len(blocks) + 1)]
    assert [count["shadow_judged"] for count in counts] == judged


def test_every_row_has_its_own_counts():
    """Three blocks of many rows, and each row alone."""
    rule = Shadow(make_rule("prob", r=0.05))
    blocks = [random_block(seed=seed, batch=12) for seed in (1, 2, 3)]
    state: State = {}
    for drafted in blocks:
        state = rule.advance(drafted, settle(rule, drafted, state), state)
    for row in range(12):
        alone = counted(rule, *(drafted.of_rows(torch.tensor([row])) for drafted in blocks))
        assert alone == {name: int(state[name][row]) for name in rule.counters}
    assert state["shadow_first"].unique().numel() > 2 and state["shadow_loose"].unique().numel() > 1


def test_an_end_of_the_answer_is_the_own_token_of_its_block():
    """Behind the loosely accepted token the draft ends the answer, as the target does."""
    end = torch.tensor([2])
    ended = block(SURE[0], TORN, SURE[2], SURE[3], draft=[0, 1, 2], protocol=end, ends=end)
    counts = counted(RULE, ended)
    assert (counts["shadow_first"], counts["shadow_loose"], counts["shadow_carried"]) == (3, 1, 0)
    assert counts["shadow_differing"] == 1


def test_the_watched_rule_keeps_its_own_memory():
    """The bytes that `wisv` counts come from the blocks as it would have accepted them."""
    judged = replace(random_block(seed=2), cost=None)
    rule = Shadow(make_rule("wisv", risk=0.5, width=10))
    with pytest.raises(UserError, match="think markers"):
        Shadow(make_rule("trt-relaxed")).context(None, ())
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<think>": 4, "</think>": 5})
    context = Shadow(make_rule("trt-relaxed")).context(tokenizer, ("<think>", "</think>"))
    assert context.protocol_ids == (4, 5)
    state = rule.advance(judged, settle(rule, judged, {}), {})
    state = rule.advance(judged, settle(rule, judged, state), state)
    once = rule.rule.advance(judged, settle(rule.rule, judged, {}), {})["uplink_bytes"]
    assert torch.equal(state["rule.uplink_bytes"], once * state["shadow_judged"])
    # blocks within a loose span are not met
    assert state["shadow_judged"].unique().tolist() == [1, 2]


def test_a_watched_table_counts_judged_blocks_alone():
    """The text advances by 2 and a loose one by 4, so that two of these four blocks are judged."""
    table = PairCounts()
    counted(Shadow(make_rule("csd", table="online", counts=table, min_count=0)), *[ONE] * 4)
    assert table.counts.tolist() == [2]
