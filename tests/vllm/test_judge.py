"""The hook of the vLLM plug-in judges a flat batch as the decoder judges a padded one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.core.rule import allowed
from gistgate.rules import make_rule
from tests.vllm.batches import LENGTHS, NUM, VOCABULARY, Batch, Head, make_judge, tokens_of

RULES = [
    make_rule("prob", r=0.05), make_rule("prob-ratio", r=0.2), make_rule("top-k", k=4), make_rule("fly", window=1),
    make_rule("typical", greedy="raw"), make_rule("trt-relaxed", scope="all", delta=0.3), make_rule("fly", window=0),
    make_rule("fly", window=1, entropy="normalised", theta=0.6),
]  # fmt: skip
OF_ROWS = ("top_ids", "top_logprob", "entropy", "entropy3")
OF_DRAFTS = ("draft_logit", "draft_logprob", "draft_rank", "match", "strict", "draft_q")
"""Statistics of a block."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_position_is_judged_as_in_a_padded_block(rule: Any):
    """Ragged drafts, an empty one and chunks change nothing; protected tokens stay strict; both runners agree."""
    loose = 0
    for seed in range(20):
        batch, protected = Batch(seed), (5,)
        block = batch.padded(protected)
        stays = block.strict | (rule.accept(block, {}) & allowed(block))
        lengths = stays.cumprod(1).sum(1)
        best = block.top_ids
        expected = [
            [*ids[:length].tolist(), int(best[row, length])]
            for row, (ids, length) in enumerate(zip(block.draft_ids, lengths.tolist(), strict=True))
        ]
        judge = make_judge(rule, protected)
        assert tokens_of(batch.through_v1(judge)[0]) == expected
        assert batch.through_v2(make_judge(rule, protected), [slice(0, 4)]) == expected
        assert batch.through_v2(make_judge(rule, protected), [slice(0, 1), slice(1, 3), slice(3, 4)]) == expected
        kept = torch.arange(NUM) < lengths[:, None]
        counted = judge.counters.total()
        assert counted["loose"] == int((kept & ~block.match).sum())
        assert counted["accepted"] == int(kept.sum()) and counted["drafted"] == sum(LENGTHS)
        assert counted["loose"] == sum(
            judge.counters.of(entry.slot)["loose"] for entry in judge.requests.entries.values()
        )
        loose += counted["loose"]
    assert loose > 0


def test_a_gate_sees_the_states_before_and_after_each_draft_token_and_the_bonus_row():
    for seed in range(10):
        batch, rule = Batch(seed), make_rule("autojudge", risk=0.5)
        block = batch.padded()
        stays = (block.match | (1 - Head()(block) <= 0.5)) & block.valid
        lengths = stays.cumprod(1).sum(1).tolist()
        for texts in (
            tokens_of(batch.through_v1(make_judge(rule, gate=Head()))[0]),
            batch.through_v2(make_judge(rule, gate=Head()), [slice(0, 2), slice(2, 4)]),
        ):
            assert [len(text) - 1 for text in texts] == lengths


def test_the_ensemble_reads_the_draft_logits_of_its_own_request_and_step():
    """Greedy: x may stay where it is the argmax of the mixture; chunks change nothing."""
    rule, loose = make_rule("ensemble", w=0.4), 0
    for seed in range(20):
        batch = Batch(seed)
        draft = 3 * torch.randn(4, NUM, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        block = batch.padded()
        best = rule.favourite(block.logits[:, :-1], block.probs[:, :-1], draft.softmax(-1))
        stays = (block.match | (block.draft_ids == best)) & block.valid
        lengths = stays.cumprod(1).sum(1).tolist()
        for chunks in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
            texts = batch.through_v2(make_judge(rule), chunks, draft)
            assert [len(text) - 1 for text in texts] == lengths
        loose += sum(lengths) - int(block.match.cumprod(1).sum())
    assert loose > 0


def test_a_masked_draft_token_is_never_accepted():
    rule = make_rule("prob", r=1e-30)
    batch = Batch()
    assert [len(text) for text in tokens_of(batch.through_v1(make_judge(rule))[0])] == [num + 1 for num in LENGTHS]
    batch.logits[batch.targets, batch.read[batch.targets + 1]] = -torch.inf
    assert [len(text) for text in tokens_of(batch.through_v1(make_judge(rule))[0])] == [1] * 4
    assert [len(text) for text in batch.through_v2(make_judge(rule), [slice(0, 4)])] == [1] * 4


def test_an_invalid_draft_token_ends_the_draft():
    batch = Batch()
    batch.read[2] = -1  # the second draft token of the first request
    rule = make_rule("prob", r=1e-30)
    assert len(batch.through_v2(make_judge(rule), [slice(0, 4)])[0]) == 2


def test_no_statistic_of_a_flat_block_differs_from_the_padded_one():
    batch, judge, seen = Batch(2), make_judge(make_rule("prob", r=0.5)), []
    judge.tail = True
    opinion = judge.opinion

    def noting(rule: Any, block: Any, rows: Any) -> Any:
        seen.append(block)
        return opinion(rule, block, rows)

    judge.opinion = noting  # type: ignore[method-assign]
    batch.through_v1(judge)
    block, padded = seen[0], batch.padded()
    inside = torch.arange(NUM + 1) <= torch.tensor(LENGTHS)[:, None]
    for name in OF_ROWS:
        torch.testing.assert_close(getattr(block, name)[inside].float(), getattr(padded, name)[inside].float())
    for name in OF_DRAFTS:
        ours, theirs = getattr(block, name)[padded.valid], getattr(padded, name)[padded.valid]
        torch.testing.assert_close(ours.float(), theirs.float())
    assert block.logits.isnan().all() and block.logits.shape == padded.logits.shape
