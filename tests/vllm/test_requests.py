"""What a request may ask of the vLLM plug-in, and what one request may not do to another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.vllm.judge import Requests, stricter, wrap_once
from tests.vllm.batches import LENGTHS, Batch, make_judge, sampled_at, tokens_of

HOSTILE = ['{"r": 1' + "0" * 400 + "}", "[" * 200_000]
"""A number that no float holds, and nesting that no parser follows: neither may end the engine."""


@pytest.mark.parametrize(
    "wish", [{"strict": True}, "strict", '{"strict": true}', {"r": 0.9}, {"unknown": 1}, 7, "{", *HOSTILE]
)
def test_a_request_is_at_least_as_strict_as_it_wishes_and_its_neighbours_are_not_touched(wish: Any):
    """A wish that nobody understands is granted strictly."""
    rule, batch = make_rule("prob", r=1e-30), Batch()
    batch.extra = {"r0": {"gistgate": wish}}
    strict = tokens_of(batch.through_v1(make_judge(make_rule("prob", r=0.9)))[0])
    judge = make_judge(rule)
    found = tokens_of(batch.through_v1(judge)[0])
    assert found[0] == strict[0] and [len(text) for text in found[1:]] == [1, 2, 3]
    assert judge.counters.of(judge.requests.entries["r0"].slot)["loose"] == 0


@pytest.mark.parametrize("rule", [make_rule("autojudge", risk=0.3), make_rule("fly", theta=0.3)])
@pytest.mark.parametrize("number", [10**20, -(10**20), 2**53 + 1])
def test_a_whole_number_that_torch_cannot_compare_is_no_wish(rule: Any, number: int):
    with pytest.raises(ValueError, match="which is too large"):
        stricter(rule, {rule.knob: number})


@pytest.mark.parametrize("wish", [{"r": 1e-30}, {"strict": False}, {}, None])
def test_no_request_becomes_looser_than_the_server(wish: Any):
    rule, batch = make_rule("prob", r=0.2), Batch(3)
    expected = tokens_of(batch.through_v1(make_judge(rule))[0])
    batch.extra = {name: {"gistgate": wish} for name in batch.names}
    assert tokens_of(batch.through_v1(make_judge(rule))[0]) == expected


@pytest.mark.parametrize("judges_sampled", [False, True])
@pytest.mark.parametrize("temperatures", [(0.7, 0.0, 0.0, 0.7), (0.0, 0.7, 0.7, 0.0), (0.7, 0.7, 0.7, 0.7)])
def test_a_sampled_request_is_strict_unless_the_policy_judges_sampled_ones(
    temperatures: tuple[float, ...], judges_sampled: bool
):
    """The rule accepts everything, and vLLM's own test (here a greedy one) decides where nothing is forced."""
    sampling, differing = sampled_at(*temperatures), 0
    for seed in range(5):
        batch = Batch(seed)
        native = tokens_of(batch.through_v1(make_judge(make_rule("exact")), sampling)[0])
        judge = make_judge(make_rule("prob", r=1e-30), sampled=judges_sampled)
        found = tokens_of(batch.through_v1(judge, sampling)[0])
        loose = [judges_sampled or temperature == 0 for temperature in temperatures]
        assert [text for text, is_loose in zip(found, loose, strict=True) if not is_loose] == [
            text for text, is_loose in zip(native, loose, strict=True) if not is_loose
        ]
        assert [len(text) - 1 for text, is_loose in zip(found, loose, strict=True) if is_loose] == [
            length for length, is_loose in zip(LENGTHS, loose, strict=True) if is_loose
        ]
        assert (judge.counters.total()["expected_loose"] > 0) is judges_sampled
        differing += sum(
            len(text) - 1 < length for text, length, warm in zip(native, LENGTHS, temperatures, strict=True) if warm
        )
    assert differing > 0, "vLLM's own test refuses tokens of sampled requests, which the rule would accept"


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


@pytest.mark.parametrize(
    ("asked", "judged"),
    [({}, True), ({"repetition_penalty": 1.0, "logit_bias": None}, True), ({"repetition_penalty": 1.1}, False),
     ({"presence_penalty": 0.5}, False), ({"logit_bias": {5: 2.0}}, False), ({"min_tokens": 3}, False)],
)  # fmt: skip
def test_a_certificate_covers_no_request_that_changes_the_logits(asked: dict[str, Any], judged: bool):
    """Calibration knew no penalties. A setting that the user named has no certificate, and goes on to judge."""
    rule, params = make_rule("prob", r=0.5), SimpleNamespace(**asked)
    certified, named = Requests(rule, 4, covered_only=True), Requests(rule, 4)
    assert certified.find(["a"], lambda _: params)[0].rule is (rule if judged else None)
    assert named.find(["a"], lambda _: params)[0].rule is rule
