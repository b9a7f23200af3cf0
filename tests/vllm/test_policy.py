"""What the vLLM plug-in makes of a configuration, and the gates, certificates and settings that it
refuses.
"""

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core import request as stopping
from gistgate.core.identity import ModelIdentity
from gistgate.core.utils import UserError
from gistgate.coverage.covers import covers, refuse
from gistgate.vllm.policy import (
    Policy,
    Served,
    Settings,
    eos_ids,
    make_policy,
    read_settings,
)
from tests.certificates.proofs import certificate as made
from tests.certificates.proofs import point
from tests.tiny import byte_tokenizer, tiny_pair
from tests.vllm.rules import scope_of


@pytest.fixture
def served(place: Path) -> Served:
    """What vLLM would serve."""
    target = ModelIdentity(str(place / "target"), None, "llama", 128, 2, 259, "float32", None)
    return Served(
        "draft_model", 5, False, target, byte_tokenizer(), (2,), draft=str(place / "draft")
    )


def changed(served: Served, **changes: Any) -> Served:
    """Models (`name` is the target's) are named by their folder, target or draft."""
    place = Path(served.target.name).parent
    changes |= {key: str(place / changes[key]) for key in ("name", "draft") if key in changes}
    own = {key: changes.pop(key) for key in vars(served.target) if key in changes}
    return replace(served, target=replace(served.target, **own), **changes)


def with_gate(
    served: Served, name: str = "gate", budget: float | None = None, **settings: Any
) -> Policy:
    """The policy of one of the gates."""
    gate = str(Path(served.target.name).parent / name)
    return make_policy(Settings(gate=gate, budget=budget, settings=settings), served)


def test_a_gate_runs_at_the_operating_point_of_the_budget(served: Served):
    for budget in (0.03, None):
        policy = with_gate(served, budget=budget)
        assert policy.rule.id == "autojudge" and policy.rule.risk == 0.5 and not policy.sampled
        assert policy.source == "operating point for 3 %"
    with pytest.raises(UserError, match="no setting certified for a budget of 0.01"):
        with_gate(served, budget=0.01)


def test_another_block_than_the_certified_one_is_said(served: Served, caplog: Any):
    with caplog.at_level(logging.WARNING, logger="vllm.gistgate"):
        policy = with_gate(replace(served, num_draft=7))
    assert "block is 7, but 5 was certified" in caplog.text
    assert policy.source == "uncertified operating point for 3 %"


@pytest.mark.parametrize("schedule, certified", [((5, 0), True), ((5, 3, 0), False), ((0,), True)])
def test_a_schedule_may_stop_drafting_and_no_other_length_is_certified(
    served: Served, schedule: tuple[int, ...], certified: bool
):
    assert (
        with_gate(replace(served, schedule=schedule)).source.startswith("uncertified") != certified
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"hidden_size": 64}, "hidden size should be 128, but is 64"),
        (
            {"dtype": "bfloat16"},
            "the target is another one .dtype float32 certified, dtype bfloat16 here",
        ),
        ({"name": "draft"}, "weights should be"),
        ({"draft": "target"}, "the draft model is another one .fingerprint"),
        ({"method": "ngram"}, "drafter is lookup, but model was certified"),
    ],
)
def test_a_gate_of_another_pair_is_refused(served: Served, changes: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        with_gate(changed(served, **changes))


def test_another_dtype_is_a_warning_where_nothing_certified_was_asked_for(
    served: Served, caplog: Any
):
    with caplog.at_level(logging.WARNING, logger="vllm.gistgate"):
        assert with_gate(changed(served, dtype="bfloat16"), risk=0.1).rule.risk == 0.1
    assert "trained on states in float32, and vLLM computes in bfloat16" in caplog.text


@pytest.mark.parametrize("name, words", [("inner", "layer:1"), ("asking", "draft probabilities")])
def test_a_gate_that_reads_what_vllm_does_not_show_is_refused(
    served: Served, name: str, words: str
):
    with pytest.raises(UserError, match=words):
        with_gate(served, name, risk=0.1)


@pytest.mark.parametrize(
    "settings, words",
    [
        (Settings(rule="kl-judge"), "cannot run inside vLLM"),
        (Settings(rule="ensemble", settings={"w": 0.5}), "draft_sample_method"),
        (Settings(rule="trt-relaxed"), "Set scope to 'all'"),
        (Settings(rule="csd", settings={"table": "online"}), "frozen"),
        (Settings(rule="fly"), "window of 6 does not fit into 5"),
        (Settings(rule="typical", settings={"superset": False}), "superset"),
        (Settings(rule="autojudge", settings={"risk": 0.1}), "judges by a gate"),
        (Settings(certificate="nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_judged_here_is_refused(served: Served, settings: Settings, words: str):
    with pytest.raises(UserError, match=words):
        make_policy(settings, served)


@pytest.fixture
def certificate(place: Path, tmp_path: Path) -> str:
    """The folder of a certificate of the served pair, for the rule `prob` and two budgets."""
    points = point(0.02, settings={"r": 0.3}), point(0.05, settings={"r": 0.1})
    made(*points, rule="prob", knob="r", block=5, headline_budget=0.02, scope=scope_of(place)).save(
        tmp_path
    )
    return str(tmp_path)


@pytest.mark.parametrize("budget, r", [(None, 0.3), (0.04, 0.3), (0.05, 0.1)])
def test_a_certificate_names_the_rule_at_a_budget_and_covers_greedy_requests_only(
    served: Served, certificate: str, budget: float | None, r: float
):
    policy = make_policy(Settings(certificate=certificate, budget=budget), served)
    assert policy.rule.id == "prob" and policy.rule.r == r and not policy.sampled
    with pytest.raises(UserError, match=r"no setting certified for a budget of 0\.01"):
        make_policy(Settings(certificate=certificate, budget=0.01), served)
    with pytest.raises(UserError, match="block is 6, but 5 was certified"):
        make_policy(Settings(certificate=certificate), replace(served, num_draft=6))


def larger_tokenizer() -> Any:
    """The tokenizer of the pair with one more token."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<more>"])
    return tokenizer


@pytest.mark.parametrize(
    "entries, draft, changes, words",
    [
        ({}, {}, {"method": "ngram"}, "drafter is lookup"),
        ({}, {}, {"dtype": "float16"}, "the target is another one"),
        ({}, {}, {"draft": "target"}, "the draft model is another one"),
        ({}, {}, {"tokenizer": larger_tokenizer()}, "the tokenizer has another"),
        ({"drafting": {"stopping": {"floor": 0.3}}}, {}, {}, "drafts end by another"),
        ({}, {"quantisation": "int4"}, {}, "the draft model is another one"),
        (
            {},
            {"draft_vocabulary": "abc"},
            {"draft": "hub/draft"},
            "the draft model is another one",
        ),
        ({"ends": [2]}, {}, {"eos_ids": (2, 7)}, "answers end at the tokens"),
        ({"ends": [2], "drafting": None}, {}, {}, None),
    ],
)
def test_a_certificate_of_something_else_is_refused(
    place: Path,
    served: Served,
    entries: dict[str, Any],
    draft: dict[str, str],
    changes: Any,
    words: str | None,
):
    scope = scope_of(place, rule="prob-ratio", **entries)
    scope["draft"] |= draft
    kept = made(point(0.03, settings={"r": 0.3}), rule="prob-ratio", knob="r", block=5, scope=scope)
    with nullcontext() if words is None else pytest.raises(UserError, match=words):
        setup = changed(served, **changes).setup(kept, kept.points[0], None)
        refuse(covers(kept, setup))


def test_nothing_is_certified_on_rounded_weights(served: Served, certificate: str):
    rounded = replace(served, rounded=True)
    with pytest.raises(UserError, match="rounds weights or its cache"):
        with_gate(rounded)
    with pytest.raises(UserError, match="rounds weights or its cache"):
        make_policy(Settings(certificate=certificate), rounded)
    assert make_policy(Settings(rule="fly", settings={"window": 2}), rounded).rule.id == "fly"
    assert with_gate(rounded, risk=0.1).source == "explicit setting"


@pytest.mark.parametrize(
    "value, words",
    [
        ({}, "name a"),
        ({"rule": "prob", "strict": True}, "Keep one"),
        ({"ruel": "prob"}, "unknown key 'ruel'"),
        ("prob", "an object is expected"),
        ({"rule": "prob", "protected": ["</s>"]}, "has to be a list"),
        ({"rule": "fly", "certificate": "x"}, "itself"),
        (
            {"gate": "g", "settings": {"risk": 0.3}, "budget": 0.01},
            "a budget is kept by a certificate",
        ),
        ({"gate": "g", "budget": "0.03"}, "a finite number"),
    ],
)
def test_a_configuration_with_mistakes_is_refused(value: Any, words: str):
    with pytest.raises(UserError, match=words):
        read_settings(value)
    assert read_settings({"gate": "g", "budget": 0.03}).budget == 0.03


def test_every_added_token_and_every_end_is_protected(served: Served):
    assert served.protected == (0, 1, 2)
    assert replace(served, tokenizer=None, eos_ids=(7,)).protected == (7,)


def test_only_the_same_runs_of_tokens_are_our_lookup(served: Served):
    assert replace(served, method="ngram").drafter == "lookup"
    assert replace(served, method="ngram", lookup=(5, 5)).drafter == "ngram of 5 to 5 tokens"
    assert (
        replace(served, method="suffix").drafter == "vLLM's suffix"
    )  # it reads other requests, ours does not


def test_what_ends_a_request_is_asked_of_generation_settings_and_tokenizer_alone():
    """vLLM does not read the end of text of config.json, and neither does this library, which names
    the rest.
    """
    model = SimpleNamespace(try_get_generation_config=lambda: {"eos_token_id": [7, 2]})
    assert eos_ids(model, byte_tokenizer()) == (2, 7)
    target = tiny_pair()[0]
    target.config.eos_token_id, target.generation_config.eos_token_id = 9, [7, 2]
    assert stopping.eos_ids(target, byte_tokenizer()) == [2, 7]
