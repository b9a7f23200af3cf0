"""A draft model in both of vLLM's runners: closed, open, each rule, mixed batches, sampling. One engine per runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.vllm.rules import BUDGET, CLOSED, OPEN, RULES, check_rule, configuration, write_counts

pytestmark = pytest.mark.vllm


def sampled(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same prompts at temperature 1, each with a seed."""
    return [{**request, "params": {"temperature": 1.0, "seed": seed}} for seed, request in enumerate(requests)]


def mixed(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every other request wants strictness; of the rest, some are sampled and some have penalties."""
    options: list[dict[str, Any]] = [
        {"extra_args": {"gistgate": {"strict": True}}}, {}, {"extra_args": {"gistgate": "strict"}},
        {"temperature": 1.0}, {"extra_args": {"gistgate": {"r": 1.0}}}, {"presence_penalty": 0.5},
        {"extra_args": {"gistgate": {"r": "what?"}}}, {"temperature": 0.7},
    ]  # fmt: skip
    return [{**request, "params": params} for request, params in zip(requests, options, strict=True)]


@pytest.fixture(scope="module", params=["V1", "V2"])
def answers(request: Any, ask: Any, requests: list[dict[str, Any]], place: Path) -> dict[str, dict[str, Any]]:
    """What an engine with one of the runners answers in every phase, by name."""
    write_counts(place)
    phases: dict[str, Any] = {"open": (OPEN, requests), "plain": (None, requests), "closed": (CLOSED, requests)}
    phases |= {rule: (configuration(rule, settings, place), requests) for rule, settings in RULES.items()}
    phases |= {
        "budget": ({"gate": str(place / "gate"), "budget": BUDGET, "loop_guard": False}, requests),
        "protected": ({**OPEN, "protected": list(range(259))}, requests),
        "scored": (OPEN, [{**request, "params": {"logprobs": 0}} for request in requests]),
        "mixed": (OPEN, mixed(requests)),
        "sampled plain": (None, sampled(requests)),
        "sampled closed": (CLOSED, sampled(requests)),
        "sampled open": (OPEN, sampled(requests)),
    }

    return dict(zip(phases, ask(list(phases.values()), runner=request.param), strict=True))


def test_a_closed_gate_changes_no_id(answers: Any):
    found = answers
    assert found["closed"]["ids"] == found["plain"]["ids"]
    assert sum(counts["loose"] for counts in found["closed"]["counts"]) == 0


def test_an_open_gate_accepts_whatever_is_drafted(answers: Any):
    for name in ("open", "sampled open"):
        grown = answers[name]["metrics"]
        assert grown["accepted_tokens"] == grown["draft_tokens"] > 0, name


@pytest.mark.parametrize("rule", RULES)
def test_ids_and_loose_counts_are_those_of_our_decoder(
    answers: Any, requests: list[dict[str, Any]], place: Path, rule: str
):
    check_rule(rule, RULES[rule], answers[rule], place, requests)


def test_a_budget_runs_the_gate_at_the_setting_that_is_certified_for_it(answers: Any):
    assert answers["budget"]["ids"] == answers["autojudge"]["ids"] != answers["plain"]["ids"]


def test_protected_tokens_stay_strict(answers: Any):
    found = answers
    assert found["protected"]["ids"] == found["plain"]["ids"] != found["open"]["ids"]


def test_strict_requests_keep_their_ids_beside_loose_sampled_and_penalised_ones(answers: Any):
    found = answers
    for row in (0, 2, 4, 6):
        assert found["mixed"]["ids"][row] == found["plain"]["ids"][row], row
        assert found["mixed"]["counts"][row]["loose"] == 0
    assert found["mixed"]["ids"][1] == found["open"]["ids"][1]
    assert found["mixed"]["counts"][3]["expected_loose"] > 0


def test_a_closed_gate_changes_no_sampled_id(answers: Any):
    """Both arms run with the repaired expansion of parameters on V1."""
    found = answers
    assert found["sampled closed"]["ids"] == found["sampled plain"]["ids"] != found["plain"]["ids"]


def test_log_probabilities_are_those_of_the_target_without_forcing(
    answers: Any, requests: list[dict[str, Any]], place: Path
):
    found = answers["scored"]
    target = LlamaForCausalLM.from_pretrained(place / "target", dtype=torch.float32)
    for request, ids, scores in zip(requests, found["ids"], found["logprobs"], strict=True):
        logits = target(torch.tensor([[*request["prompt"], *ids]])).logits[0, len(request["prompt"]) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).squeeze(-1)
        torch.testing.assert_close(torch.tensor(scores), expected.detach(), atol=1e-3, rtol=1e-3)


def test_the_ensemble_without_weight_on_the_target_accepts_every_sampled_draft(
    ask: Any, requests: list[dict[str, Any]], place: Path
):
    """Triton's interpreter cannot run V2 with draft probabilities, so V1 does it."""
    speculation = {"method": "draft_model", "model": str(place / "draft"), "draft_sample_method": "probabilistic"}
    phases = [(configuration("ensemble", {"w": w}, place), sampled(requests)) for w in (0.0, 1.0)]
    opened, closed = (found["metrics"] for found in ask(phases, speculation=speculation))
    assert opened["accepted_tokens"] == opened["draft_tokens"] > 0
    assert closed["accepted_tokens"] < closed["draft_tokens"]
