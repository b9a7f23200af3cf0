"""The hook of the vLLM plug-in on batches made by hand, with stand-ins for vLLM's own functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.integrations.vllm import v1, v2
from gistgate.integrations.vllm.hooks import wrap_once
from gistgate.integrations.vllm.judge import Judge
from gistgate.integrations.vllm.policy import Policy
from gistgate.rules import make_rule
from gistgate.rules.base import allowed

VOCABULARY, WIDTH, NUM = 11, 4, 3
LENGTHS = [3, 0, 1, 2]
"""Drafted tokens of each request of the ragged batch."""


def native_v1(
    draft_token_ids: Tensor, num_draft_tokens: list[int], max_spec_len: int, _ends: Tensor, _probs: Any,
    target_logits: Tensor, bonus_token_ids: Tensor, _sampling: Any, *_more: Any,
) -> Tensor:  # fmt: skip
    """vLLM's greedy test, written as a loop."""
    result = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32)
    best, start = target_logits.argmax(-1), 0
    for row, length in enumerate(num_draft_tokens):
        for place in range(length + 1):
            own = bonus_token_ids[row, 0] if place == length else best[start + place]
            result[row, place] = own
            if place < length and own != draft_token_ids[start + place]:
                break
        start += length
    return result


def native_v2(
    target_logits: Tensor, _draft: Any, draft_sampled: Tensor, cu_num_logits: Tensor, *more: Any
) -> tuple[Tensor, Tensor]:
    """The same for the second runner."""
    num = more[6]
    result, lengths = torch.zeros(len(cu_num_logits) - 1, num + 1, dtype=torch.int64), []
    best = target_logits.argmax(-1)
    for row, (start, end) in enumerate(zip(cu_num_logits[:-1].tolist(), cu_num_logits[1:].tolist(), strict=True)):
        place = 0
        result[row, 0] = best[start]
        while start + place + 1 < end and best[start + place] == draft_sampled[start + place + 1]:
            place += 1
            result[row, place] = best[start + place]
        lengths.append(place + 1)
    return result, torch.tensor(lengths)


KNOWN: dict[tuple[str, str], Any] = {}


def wishing(name: str, wish: Any) -> Any:
    """Sampling parameters with a wish; the same object as long as the request lives."""
    return KNOWN.setdefault((name, repr(wish)), SimpleNamespace(extra_args=wish))


class Batch:
    """A ragged batch in the terms of both runners."""

    def __init__(self, seed: int = 0, lengths: list[int] | None = None) -> None:
        self.lengths = LENGTHS if lengths is None else lengths
        generator = torch.Generator().manual_seed(seed)
        self.num_rows = sum(self.lengths) + len(self.lengths)
        self.logits = 2 * torch.randn(self.num_rows, VOCABULARY, generator=generator)
        self.hidden = torch.randn(self.num_rows, WIDTH, generator=generator)
        self.read = torch.randint(VOCABULARY, (self.num_rows,), generator=generator)
        self.ends = torch.tensor([0, *self.lengths]).cumsum(0) + torch.arange(len(self.lengths) + 1)
        self.bonus = self.ends[1:] - 1
        rows = torch.arange(self.num_rows)
        self.targets = rows[~torch.isin(rows, self.bonus)]
        self.names = [f"r{index}" for index in range(len(self.lengths))]
        self.extra: dict[str, Any] = {}

    def params(self) -> dict[str, Any]:
        return {name: wishing(name, self.extra.get(name)) for name in self.names}

    def through_v1(self, judge: Judge) -> tuple[Tensor, Tensor]:
        """Result of the first runner, and the logits afterwards."""
        ids = self.read[self.targets + 1]
        metadata = SimpleNamespace(
            bonus_logits_indices=self.bonus,
            logits_indices=torch.arange(self.num_rows),
            target_logits_indices=self.targets,
        )
        runner = SimpleNamespace(
            requests={name: SimpleNamespace(sampling_params=params) for name, params in self.params().items()},
            input_batch=SimpleNamespace(req_ids=self.names),
            input_ids=SimpleNamespace(gpu=self.read),
        )
        call = v1.Call(judge, runner, self.hidden, metadata, self.logits)
        logits = self.logits[self.targets]
        sampling = SimpleNamespace(all_greedy=True, all_random=False, temperature=None)
        bonus = self.logits[self.bonus].argmax(-1, keepdim=True)
        ends = torch.tensor(self.lengths).cumsum(0)
        found = v1.verify(call, native_v1, ids, self.lengths, max(self.lengths), ends, None, logits, bonus, sampling)
        assert torch.equal(logits, self.logits[self.targets])
        return found, logits

    def through_v2(self, judge: Judge, chunks: list[slice], draft: Tensor | None = None) -> list[list[int]]:
        """Tokens of each request from the second runner, in chunks of whole requests."""
        mapping = torch.arange(len(self.lengths))
        batch = SimpleNamespace(req_ids=self.names, idx_mapping_np=mapping.numpy())
        call = v2.Call(judge, self.params(), torch.zeros(len(self.lengths)).numpy(), self.hidden, batch)
        texts = []
        for chunk in chunks:
            low, high = int(self.ends[chunk.start]), int(self.ends[chunk.stop])
            expanded = torch.repeat_interleave(mapping, torch.tensor(self.lengths) + 1)[low:high]
            logits = self.logits[low:high].clone()
            tokens, lengths = v2.verify(
                call, native_v2, logits, draft, self.read[low:high], self.ends[chunk.start : chunk.stop + 1] - low,
                torch.arange(low, high), mapping[chunk], expanded, torch.zeros(high - low), torch.zeros(8),
                torch.zeros(8), NUM,
            )  # fmt: skip
            assert torch.equal(logits, self.logits[low:high])
            texts += [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
        return texts

    def padded(self, protected: tuple[int, ...] = ()) -> Block:
        """The same batch as the library's own block."""
        places = torch.minimum(self.ends[:-1, None] + torch.arange(NUM + 1), self.bonus[:, None])
        following = (places[:, :-1] + 1).clamp_max(self.num_rows - 1)
        return Block(
            self.read[following], torch.arange(NUM) < torch.tensor(self.lengths)[:, None], self.logits[places],
            hidden={"post": self.hidden[places]}, protocol=torch.tensor(protected, dtype=torch.long),
        )  # fmt: skip


class Head:
    """A gate that shows what it is given."""

    features: ClassVar[dict[str, int]] = {"h_tok:post": WIDTH, "scalars": 8}

    def __call__(self, block: Block) -> Tensor:
        before, after = block.hidden["post"][:, :-1].sum(-1), block.hidden["post"][:, 1:].sum(-1)
        return torch.sigmoid(before - after + block.entropy[:, 1:] - block.draft_rank)


def make_judge(rule: Any, protected: tuple[int, ...] = (), gate: Any = None, guard: bool = False, **more: Any) -> Judge:
    return Judge(Policy(rule, gate, "test", True), protected, 8, torch.device("cpu"), guard, **more)


def tokens_of(result: Tensor) -> list[list[int]]:
    return [[token for token in row if token >= 0] for row in result.tolist()]


RULES = [
    make_rule("prob", r=0.05), make_rule("prob-ratio", r=0.2), make_rule("top-k", k=4), make_rule("fly", window=1),
    make_rule("typical", greedy="raw"), make_rule("trt-relaxed", scope="all", delta=0.3), make_rule("fly", window=0),
    make_rule("fly", window=1, entropy="normalised", theta=0.6),
]  # fmt: skip


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
        best = rule.favourite(block.logits[:, :-1], draft.softmax(-1))
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


@pytest.mark.parametrize("wish", [{"strict": True}, "strict", '{"strict": true}', {"r": 0.9}, {"unknown": 1}, 7, "{"])
def test_a_request_is_at_least_as_strict_as_it_wishes_and_its_neighbours_are_not_touched(wish: Any):
    """A wish that nobody understands is granted strictly."""
    rule, batch = make_rule("prob", r=1e-30), Batch()
    batch.extra = {"r0": {"gistgate": wish}}
    strict = tokens_of(batch.through_v1(make_judge(make_rule("prob", r=0.9)))[0])
    judge = make_judge(rule)
    found = tokens_of(batch.through_v1(judge)[0])
    assert found[0] == strict[0] and [len(text) for text in found[1:]] == [1, 2, 3]
    assert judge.counters.of(judge.requests.entries["r0"].slot)["loose"] == 0


@pytest.mark.parametrize("wish", [{"r": 1e-30}, {"strict": False}, {}, None])
def test_no_request_becomes_looser_than_the_server(wish: Any):
    rule, batch = make_rule("prob", r=0.2), Batch(3)
    expected = tokens_of(batch.through_v1(make_judge(rule))[0])
    batch.extra = {name: {"gistgate": wish} for name in batch.names}
    assert tokens_of(batch.through_v1(make_judge(rule))[0]) == expected


def test_an_id_that_comes_back_is_another_request():
    """A strict request must not inherit the rule of an earlier one with its id."""
    judge, batch = make_judge(make_rule("prob", r=1e-30)), Batch()
    batch.through_v1(judge)
    batch.extra = {"r0": {"gistgate": "strict"}}
    batch.through_v1(judge)
    assert judge.counters.of(judge.requests.entries["r0"].slot)["loose"] == 0
    assert judge.requests.entries["r0"].rule is None


def test_more_requests_than_slots_forget_the_oldest():
    judge = make_judge(make_rule("prob", r=1e-30))
    judge.requests.capacity = 6
    for _ in range(5):
        batch = Batch()
        batch.names = [f"{len(judge.requests.entries)}-{_}-{name}" for name in batch.names]
        batch.through_v1(judge)
        assert len(judge.requests.entries) <= 6
        assert len({entry.slot for entry in judge.requests.entries.values()}) == len(judge.requests.entries)
    assert judge.counters.total()["accepted"] == 5 * sum(LENGTHS)


def test_the_ranks_of_a_group_obey_the_first_one():
    """Whatever this rank computes, the shared mask decides."""
    judge = make_judge(make_rule("prob", r=1e-30), share=torch.zeros_like)
    batch = Batch()
    assert tokens_of(batch.through_v1(judge)[0]) == tokens_of(batch.through_v1(make_judge(make_rule("prob", r=1.0)))[0])


def test_a_looping_request_is_closed_for_a_while():
    """The target would write 7, the draft says 3 forever: loose until the loop stands, then strict."""
    judge = make_judge(make_rule("prob", r=1e-30), guard=True)
    lengths = []
    for _ in range(8):
        batch = Batch(lengths=[3])
        batch.logits[:], batch.read[:] = 0.0, 3
        batch.logits[:3, 7] = 1.0
        batch.logits[3, 3] = 9.0
        lengths.append(len(tokens_of(batch.through_v1(judge)[0])[0]) - 1)
    assert lengths == [3, 0, 0, 0, 0, 0, 0, 0]
    assert judge.counters.total()["guarded"] == 7


def test_a_function_is_wrapped_once_and_left_alone_outside_of_a_step():
    module = SimpleNamespace(rejection_sample=lambda value: value)
    wrap_once(module, lambda *_: "judged")
    first = module.rejection_sample
    wrap_once(module, lambda *_: "judged twice")
    assert module.rejection_sample is first and first(5) == 5


def test_no_statistic_of_a_flat_block_differs_from_the_padded_one():
    batch = Batch(2)
    judge, seen = make_judge(make_rule("prob", r=0.5)), []
    judge.tail = True
    verdict = judge.verdict

    def noting(*arguments: Any) -> Any:
        seen.append(verdict(*arguments))
        return seen[-1]

    judge.verdict = noting  # type: ignore[method-assign]
    batch.through_v1(judge)
    block, padded = seen[0].block, batch.padded()
    inside = torch.arange(NUM + 1) <= torch.tensor(LENGTHS)[:, None]
    for name in ("top_ids", "top_logprob", "entropy", "entropy3"):
        torch.testing.assert_close(getattr(block, name)[inside].float(), getattr(padded, name)[inside].float())
    for name in ("draft_logit", "draft_logprob", "draft_rank", "match", "strict", "draft_q"):
        ours, theirs = getattr(block, name)[padded.valid], getattr(padded, name)[padded.valid]
        torch.testing.assert_close(ours.float(), theirs.float())
    assert block.logits.isnan().all() and block.logits.shape == padded.logits.shape
