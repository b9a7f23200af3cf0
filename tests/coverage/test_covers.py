"""Whether a certificate covers a setup and an ask: every kind of difference, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from gistgate.core.identity import identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.ask import UNKNOWN, Ask
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.covers import SENTENCES, Coverage, covers, differing_fields
from gistgate.coverage.setup import Setup, files_behind
from tests.certificates.proofs import certificate, gate_with, point
from tests.tiny import byte_tokenizer, tiny_pair

TARGET, DRAFT = tiny_pair()
TOKENIZER = byte_tokenizer()
CERTIFIED = Setup.of(
    TARGET,
    DRAFT,
    TOKENIZER,
    gate_with(),
    rule="autojudge",
    settings={"risk": 0.2},
    rule_data="abc",
    drafter="model",
    drafter_data="def",
    drafting={"stopping": 0.3},
    block=4,
    engine="eager",
    guards=["loop"],
)
ASKED = Ask(0.0, True, "Be short.", 2, {"enable_thinking": False}, ["Q:"])


def proof() -> Certificate:
    """A certificate whose scope says all of CERTIFIED and ASKED."""
    names = ("target", "draft", "tokenizer", "encoding", "template", "ends", "gate", "rule_data")
    names += ("drafter_data", "drafting", "engine", "guards")
    scope: dict[str, Any] = {name: getattr(CERTIFIED, name) for name in names}
    prompting = {"chat_template": True, "system": "Be short.", "num_fewshot": 2}
    scope["prompting"] = {**prompting, "arguments": {"enable_thinking": False}}
    return certificate(scope={**scope, "temperature": 0.0, "stops": ["Q:"]})


def kinds(setup: Setup, ask: Ask = ASKED) -> list[str]:
    certified = proof()
    differences = [*covers(certified, setup), *differing_fields(certified.ask, ask)]
    return [difference.kind for difference in differences]


def test_what_was_certified_is_covered_and_unknown_is_not_compared() -> None:
    assert kinds(CERTIFIED) == []
    assert kinds(Setup(), Ask()) == []
    older = replace(proof(), scope={"gate": CERTIFIED.gate})
    assert covers(older, replace(CERTIFIED, guards=UNKNOWN, drafting=None, drafter_data=None)) == []


OTHER_MODEL = {**CERTIFIED.target, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": OTHER_MODEL}, "the target is another one (dtype float32 certified, dtype bf"),
        ({"draft": {**CERTIFIED.draft, "quantisation": "int4"}}, "quantisation none certified"),
        ({"tokenizer": "other"}, "another vocabulary"),
        ({"encoding": "other"}, "divides texts in another way"),
        ({"template": "other"}, "the chat template is another one"),
        ({"ends": [7]}, "answers end at the tokens [7]"),
        ({"gate": None}, "here"),
        ({"rule": "prob", "block": 9}, "the rule 'autojudge' was certified, not 'prob'"),
        ({"settings": {"risk": 0.3}}, "risk 0.3 is not among the certified values (0.2)"),
        ({"rule_data": "other"}, "the rule reads other files"),
        ({"drafter": "lookup"}, "drafter is lookup, but model was certified"),
        ({"drafter_data": "other"}, "the drafter reads other texts"),
        ({"drafting": None}, "drafts end by another policy"),
        ({"block": 9}, "block is 9, but 4 was certified"),
        ({"engine": "compiled"}, "the engine is compiled, but eager was certified"),
        ({"guards": []}, "the guards are none"),
    ],
)
def test_every_part_of_a_setup_counts(changes: dict[str, Any], words: str) -> None:
    (difference,) = covers(proof(), replace(CERTIFIED, **changes))
    assert words in difference.sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": 0.7}, "the temperature is 0.7, but 0.0 was certified"),
        ({"chat": False}, "the use of the chat template is False"),
        ({"system": None}, "the system text is none"),
        ({"num_fewshot": "2 in one turn"}, "the solved examples are 2 in one turn"),
        ({"arguments": {}}, "enable_thinking False"),
        ({"stops": []}, "answers end at the texts none"),
    ],
)
def test_every_part_of_an_ask_counts(changes: dict[str, Any], words: str) -> None:
    (difference,) = differing_fields(proof().ask, replace(ASKED, **changes))
    assert words in difference.sentence


def test_a_certificate_of_vllm_does_not_hold_for_this_library() -> None:
    served = replace(proof(), scope={**proof().scope, "engine": "vllm 0.32.0"})
    (difference,) = covers(served, Setup.of(TARGET))
    assert difference.sentence == "the engine is this library's, but vllm 0.32.0 was certified"
    assert covers(served, replace(CERTIFIED, engine="vllm 0.32.0")) == []
    compiled = replace(proof(), scope={**proof().scope, "engine": "compiled"})
    assert covers(compiled, Setup.of(TARGET)) == []


def test_there_is_a_sentence_for_each_kind_of_difference() -> None:
    fields = {*vars(CERTIFIED), *vars(ASKED)} - {"settings"}
    assert SENTENCES.keys() == fields | {"setting", "knob"}


def test_a_setting_that_nobody_names_is_at_its_default() -> None:
    fly = certificate(point(settings={"theta": 0.5}), rule="fly", knob="theta")
    setup = Setup(rule="fly", settings={"theta": 0.5, "window": 5})
    assert [difference.sentence for difference in covers(fly, setup)] == [
        "window is 5, but 6 was certified"
    ]
    assert covers(fly, replace(setup, settings={"theta": 0.5, "window": 6})) == []


def test_a_fingerprint_that_nobody_has_is_not_compared() -> None:
    """vLLM names weights alone, and none where the model is on a hub."""
    for draft in ({"fingerprint": None}, {"fingerprint": CERTIFIED.draft["fingerprint"]}):
        assert kinds(replace(CERTIFIED, draft=draft)) == []
    assert kinds(replace(CERTIFIED, draft={"fingerprint": "other"})) == ["draft"]


def test_the_same_vocabulary_is_not_enough() -> None:
    other = tokenizer_scope(byte_tokenizer(bos=False), ("encoding", "template"))
    assert other["tokenizer"] == CERTIFIED.tokenizer
    assert kinds(replace(CERTIFIED, encoding=other["encoding"])) == ["encoding"]


def test_parts_are_described_as_a_certificate_describes_them() -> None:
    assert CERTIFIED.target == model_scope(identify_model(TARGET))
    assert CERTIFIED.ends == eos_ids(TARGET, TOKENIZER)


def test_a_named_certificate_refuses_and_one_beside_a_gate_warns() -> None:
    sampled = replace(ASKED, temperature=0.7)
    named = Coverage(proof(), is_named=True, certified=proof().ask)
    assert named.meet(ASKED) is None
    with pytest.raises(UserError, match="does not hold here: the temperature is"):
        named.meet(sampled)
    with pytest.warns(UserWarning, match="No certificate covers these requests"):
        assert "temperature" in str(replace(named, is_named=False).meet(sampled))
    assert Coverage().meet(sampled) is None
    assert named.stops(None) == ["Q:"] and named.stops(["X"]) == ["X"]


def test_a_file_that_a_rule_reads_has_to_be_here(tmp_path: Any) -> None:
    counts = tmp_path / "pairs.safetensors"
    counts.write_text("old")
    before = files_behind({"counts": str(counts), "tau_c": 0.1})
    counts.write_text("new")
    assert files_behind({"counts": str(counts)}) != before
    counts.unlink()
    with pytest.raises(UserError, match=r"is not here \(counts=.*pairs.safetensors\)"):
        files_behind({"counts": str(counts)})
