"""The hook of the vLLM plug-in judges a flat batch as the decoder judges a padded one, each request
as it wishes.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.rule import allowed
from gistgate.rules import make_rule
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.policy import Policy
from tests.vllm.batches import ANSWER, LENGTHS, NUM, VOCABULARY, Batch, Head, make_judge

RULES = [
    make_rule("prob", r=0.05),
    make_rule("prob-ratio", r=0.2),
    make_rule("top-k", k=4),
    make_rule("fly", window=1),
    make_rule("fly", window=0),
    make_rule("fly", window=1, entropy="normalised", theta=0.6),
    make_rule("typical", greedy="raw"),
    make_rule("trt-relaxed", scope="all", delta=0.3),
]
OPEN = make_rule("prob", r=1e-30)
OF_ROWS = ("top_ids", "top_logprob", "entropy", "entropy3")
OF_DRAFTS = ("draft_logit", "draft_logprob", "draft_rank", "match", "strict", "draft_q")
"""Statistics of a block."""
HOSTILE = ['{"r": 1' + "0" * 400 + "}", "[" * 200_000]
"""A number that no float holds, and nesting that no parser follows: neither may end the engine."""


def lengths_of(texts: list[list[int]]) -> list[int]:
    """Accepted tokens of each request."""
    return [len(text) - 1 for text in texts]


def loose_of(judge: Any, name: str) -> float:
    return float(judge.counters.total(judge.requests.entries[name].slot)["loose"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_position_is_judged_as_in_a_padded_block(rule: Any):
    """Ragged drafts, an empty one and chunks change nothing; protected tokens stay strict; both
    runners agree.
    """
    loose = 0
    for seed in range(20):
        batch, protected = Batch(seed), (5,)
        block = batch.padded(protected)
        lengths = (block.strict | (rule.accept(block) & allowed(block))).cumprod(1).sum(1)
        expected = [
            [*ids[:length].tolist(), int(best[length])]
            for ids, best, length in zip(
                block.draft_ids, block.top_ids, lengths.tolist(), strict=True
            )
        ]
        judge = make_judge(rule, protected)
        assert batch.through_v1(judge) == expected
        assert batch.through_v2(make_judge(rule, protected)) == expected
        assert batch.through_v2(make_judge(rule, protected), (0, 1, 3, 4)) == expected
        kept = torch.arange(NUM) < lengths[:, None]
        counted = judge.counters.total()
        assert counted["loose"] == int((kept & ~block.match).sum())
        assert counted["loose"] == sum(loose_of(judge, name) for name in batch.params)
        assert counted["accepted"] == int(kept.sum()) and counted["drafted"] == sum(LENGTHS)
        loose += counted["loose"]
    assert loose > 0


def test_a_gate_sees_the_states_before_and_after_each_draft_token_and_the_bonus_row():
    for seed in range(10):
        batch, rule = Batch(seed), make_rule("autojudge", risk=0.5)
        block = batch.padded()
        length_B = ((block.match | (1 - Head()(block) <= 0.5)) & block.valid).cumprod(1).sum(1)
        lengths, judge = length_B.tolist(), make_judge(rule, gate=Head())
        assert lengths_of(batch.through_v1(judge)) == lengths
        met = ~block.match & block.valid & (torch.arange(NUM) <= length_B[:, None])
        counts, harm = judge.counters.total(), (1 - Head()(block))[met]
        assert counts["mismatches"] == int(met.sum()) and counts["harm"] == pytest.approx(
            float(harm.sum()), abs=1e-5
        )
        assert lengths_of(batch.through_v2(make_judge(rule, gate=Head()), (0, 2, 4))) == lengths


def test_the_ensemble_reads_the_draft_logits_of_its_own_request_and_step():
    """Greedy: x may stay where it is the argmax of the mixture; chunks change nothing."""
    rule, loose = make_rule("ensemble", w=0.4), 0
    for seed in range(20):
        batch = Batch(seed)
        draft = 3 * torch.randn(4, NUM, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        block = batch.padded()
        best = rule.favourite(block.logits[:, :-1], block.probs[:, :-1], draft.softmax(-1))
        lengths = (
            ((block.match | (block.draft_ids == best)) & block.valid).cumprod(1).sum(1).tolist()
        )
        assert lengths_of(batch.through_v1(make_judge(rule), draft=draft)) == lengths
        for cuts in (0, 4), (0, 2, 4):
            assert lengths_of(batch.through_v2(make_judge(rule), cuts, draft)) == lengths
        loose += sum(lengths) - int(block.match.cumprod(1).sum())
    assert loose > 0


def test_a_masked_draft_token_is_never_accepted_and_an_invalid_one_ends_the_draft():
    batch = Batch()
    assert lengths_of(batch.through_v1(make_judge(OPEN))) == LENGTHS
    batch.logits[batch.targets, batch.read[batch.targets + 1]] = -torch.inf
    assert lengths_of(batch.through_v1(make_judge(OPEN))) == [0] * 4
    assert lengths_of(batch.through_v2(make_judge(OPEN))) == [0] * 4
    batch = Batch()
    batch.read[2] = -1  # the second draft token of the first request
    assert lengths_of(batch.through_v2(make_judge(OPEN)))[0] == 1


def test_no_statistic_of_a_flat_block_differs_from_the_padded_one(monkeypatch: pytest.MonkeyPatch):
    batch, judge, seen = Batch(2), make_judge(make_rule("prob", r=0.5), gate=Head()), []
    opinion = judge.opinion
    monkeypatch.setattr(
        judge, "opinion", lambda block, entries: seen.append(block) or opinion(block, entries)
    )
    batch.through_v1(judge)
    block, padded = seen[0], batch.padded()
    inside = torch.arange(NUM + 1) <= torch.tensor(LENGTHS)[:, None]
    for names, where in (OF_ROWS, inside), (OF_DRAFTS, padded.valid):
        for name in names:
            torch.testing.assert_close(
                getattr(block, name)[where].float(), getattr(padded, name)[where].float()
            )
    assert block.logits.isnan().all() and block.logits.shape == padded.logits.shape


@pytest.mark.parametrize(
    "wish",
    [{"strict": True}, "strict", '{"strict": true}', {"r": 0.9}, {"unknown": 1}, 7, "{", *HOSTILE],
)
def test_a_request_is_at_least_as_strict_as_it_wishes_and_its_neighbours_are_not_touched(wish: Any):
    """A wish that nobody understands is granted strictly."""
    batch, judge = Batch(), make_judge(OPEN)
    strict = batch.through_v1(make_judge(make_rule("prob", r=0.9)))
    batch.wish("r0", wish)
    found = batch.through_v1(judge)
    assert found[0] == strict[0] and lengths_of(found)[1:] == LENGTHS[1:]
    assert loose_of(judge, "r0") == 0


@pytest.mark.parametrize("wish", [{"r": 1e-30}, {"strict": False}, {}, None])
def test_no_request_becomes_looser_than_the_server(wish: Any):
    rule, batch = make_rule("prob", r=0.2), Batch(3)
    expected = batch.through_v1(make_judge(rule))
    for name in batch.params:
        batch.wish(name, wish)
    assert batch.through_v1(make_judge(rule)) == expected


@pytest.mark.parametrize("judges_sampled", [False, True])
@pytest.mark.parametrize(
    "temperatures", [(0.7, 0.0, 0.0, 0.7), (0.0, 0.7, 0.7, 0.0), (0.7, 0.7, 0.7, 0.7)]
)
def test_a_sampled_request_is_strict_unless_the_policy_judges_sampled_ones(
    temperatures: tuple[float, ...], judges_sampled: bool
):
    """The rule accepts everything, and vLLM's own test (here a greedy one) decides where nothing is
    forced.
    """
    sampling = SimpleNamespace(
        all_greedy=False, all_random=0.0 not in temperatures, temperature=torch.tensor(temperatures)
    )
    refused = 0
    for seed in range(5):
        batch, judge = Batch(seed), make_judge(OPEN, sampled=judges_sampled)
        native = batch.through_v1(make_judge(make_rule("exact")), sampling)
        found = batch.through_v1(judge, sampling)
        for own, text, length, warm in zip(native, found, LENGTHS, temperatures, strict=True):
            assert len(text) - 1 == length if judges_sampled or not warm else text == own
            refused += warm > 0 and len(own) - 1 < length
        assert (judge.counters.total()["expected_loose"] > 0) is judges_sampled
    assert refused > 0, (
        "vLLM's own test refuses tokens of sampled requests, which the rule would accept"
    )


@pytest.mark.parametrize(
    "runner, known, wish, loose",
    [
        ("V1", ANSWER, "thinking", True),
        ("V1", [-1, -1], {"scope": "thinking"}, False),
        ("V1", ANSWER, "prose", True),
        ("V2", ANSWER, '{"scope": "thinking"}', True),
        ("V2", [9, 4], "thinking", False),
        ("V1", ANSWER, {"scope": "prose", "strict": True}, False),
        ("V1", ANSWER, {"scope": "thought"}, False),
    ],
)
def test_a_scope_reads_the_text_of_its_request_alone(
    runner: str, known: list[int], wish: Any, loose: bool
):
    """Token 3 begins thoughts. Behind a token that the runner has not fetched, nothing is loose."""
    words = {3: "<think>", 9: "</think>"}
    tokenizer = SimpleNamespace(
        added_tokens_decoder={}, decode=lambda ids, **how: words.get(ids[0], "word")
    )
    batch = Batch(1)
    batch.known, batch.read[batch.read == 3], batch.read[batch.read == 9] = known, 4, 4
    batch.logits[:, [3, 9]] = -9.0
    batch.wish("r0", wish)
    judge = make_judge(OPEN, tokenizer=tokenizer)
    found = batch.through_v1(judge) if runner == "V1" else batch.through_v2(judge)
    assert (loose_of(judge, "r0") > 0) is loose and lengths_of(found)[1:] == LENGTHS[1:]
    assert "r0" in batch.params and judge.requests.entries["r1"].scope is None


def test_a_share_of_the_requests_is_strict_and_both_arms_are_counted():
    judge = VllmJudge(Policy(OPEN, shadow=0.5), (), 256, torch.device("cpu"))
    for number in range(50):
        batch = Batch()
        batch.params = {f"{number}-{name}": params for name, params in batch.params.items()}
        batch.wish(f"{number}-r3", {"r": 0.5})
        for _ in range(2):
            texts = batch.through_v1(judge)
        assert (
            lengths_of(texts)[0] == LENGTHS[0]
            or judge.requests.entries[f"{number}-r0"].rule is None
        )
    counts = judge.counters.total()
    assert counts["plain_requests"] + counts["shadow_requests"] == 150, (
        "whoever wishes something is not compared"
    )
    assert 50 < counts["shadow_requests"] < 100
    assert (
        counts["shadow_tokens"] / counts["shadow_requests"]
        < counts["plain_tokens"] / counts["plain_requests"]
    )


def test_an_id_that_comes_back_is_another_request():
    """A strict request must not inherit the rule of an earlier one with its id."""
    judge, batch = make_judge(OPEN), Batch()
    batch.through_v1(judge)
    batch.wish("r0", "strict")
    batch.through_v1(judge)
    assert loose_of(judge, "r0") == 0 and judge.requests.entries["r0"].rule is None


def test_more_requests_than_slots_forget_the_oldest():
    judge = make_judge(OPEN)
    judge.requests.capacity = 6
    for number in range(5):
        batch = Batch()
        batch.params = {f"{number}-{name}": params for name, params in batch.params.items()}
        batch.through_v1(judge)
        slots = [entry.slot for entry in judge.requests.entries.values()]
        assert len(set(slots)) == len(slots) == min(4 * (number + 1), 6)
    assert judge.counters.total()["accepted"] == 5 * sum(LENGTHS)


def test_the_ranks_of_a_group_obey_the_first_one():
    """Whatever this rank computes, the shared mask decides."""
    found = Batch().through_v1(make_judge(OPEN, share=torch.zeros_like))
    assert found == Batch().through_v1(make_judge(make_rule("prob", r=1.0)))


def test_a_looping_request_is_closed_for_a_while():
    """The target would write 7, the draft says 3 forever: loose until the loop stands, then
    strict.
    """
    judge, batch, lengths = make_judge(OPEN, guard=True), Batch(lengths=[3]), []
    batch.logits[:], batch.read[:] = 0.0, 3
    batch.logits[:3, 7], batch.logits[3, 3] = 1.0, 9.0
    for _ in range(8):
        lengths += lengths_of(batch.through_v1(judge))
    assert lengths == [3, 0, 0, 0, 0, 0, 0, 0]
    assert judge.counters.total()["guarded"] == 7
