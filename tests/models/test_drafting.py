"""Lighter drafts and ends of drafts by name, and what certificates bind of them."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gistgate.certificates.calibration import decoding_scope
from gistgate.core.decoder import Decoder
from gistgate.core.identity import identify_model
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.drafters.adaptive import ModelOrTextDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.models.build import asks_draft, build_decoder
from gistgate.models.lighter import Subset
from gistgate.models.options import DecodeOptions
from tests.architectures import pair
from tests.models.test_decoder import certificate
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = pair("llama")
ENDS = Stopping(0.3, measured={"cost": 0.2, "verify": 1.0, "block": 5})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a draft model, a certificate that was made with `ENDS`, that policy, and a draft vocabulary."""
    DRAFT.save_pretrained(tmp_path / "draft")
    certificate(scope={"drafting": {"stopping": ENDS.binding}}).save(tmp_path / "ended")
    certificate().save(tmp_path / "whole")
    ENDS.save(tmp_path / "stop.json")
    texts = TOKENIZER(["Tom has five apples."]).input_ids
    Subset.count(texts, 40, TOKENIZER, DRAFT, [TOKENIZER.eos_token_id]).save(tmp_path / "words.json")
    return tmp_path


def build(place: Path, **parts: Any) -> Decoder:
    return build_decoder(TARGET, TOKENIZER, DecodeOptions(**{"draft": str(place / "draft"), **parts}))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"draft": TARGET, "quantise_draft": "int8"}, "Target and draft are one loaded model"),
        ({"draft": TARGET, "draft_vocabulary": "words.json"}, "Target and draft are one loaded model"),
        ({"drafter": "lookup", "quantise_draft": "int4"}, "asks no draft model"),
        ({"drafter": "lookup", "corpus": "texts.txt"}, "reads no corpus"),
        ({"drafter": "corpus", "corpus": "texts.txt", "datastore": "store"}, "reads no datastore"),
        ({"drafter": "sen", "corpus": "texts.txt", "datastore": "store"}, "reads no corpus"),
    ],
)
def test_what_would_change_nothing_or_the_target_is_refused(place: Path, parts: dict[str, Any], message: str) -> None:
    before = identify_model(TARGET)
    with pytest.raises(UserError, match=message):
        build(place, **parts)
    assert identify_model(TARGET) == before


def test_no_bits_are_nothing_to_refuse() -> None:
    decoder = build_decoder(TARGET, TOKENIZER, DecodeOptions(drafter="lookup", quantise_draft="none"))
    assert decoder.drafter is not None and decoder.drafter.model is None


def test_a_lighter_draft_is_another_one_for_certificates(place: Path) -> None:
    parts = {"quantise_draft": "int8", "draft_vocabulary": str(place / "words.json")}
    model = build(place, **parts).drafter.model  # type: ignore[union-attr]
    found = identify_model(model)
    assert found.quantisation == "int8" and found.draft_vocabulary == Subset.load(place / "words.json").digest
    for name, value in parts.items():
        shown = {"quantise_draft": "quantisation none", "draft_vocabulary": "draft_vocabulary none"}[name]
        with pytest.raises(UserError, match=rf"another draft \(.*{shown}.* certified"):
            build(place, certificate=str(place / "whole"), **{name: value})


def test_ends_of_drafts_are_bound_both_ways(place: Path) -> None:
    stop = {"stop_drafting": str(place / "stop.json")}
    decoder = build(place, certificate=str(place / "ended"), **stop)
    assert decoder.drafter.binding == {"stopping": ENDS.binding}  # type: ignore[union-attr]
    for certificate, parts in (("ended", {}), ("whole", stop), ("ended", {"stop_drafting": "0.4"})):
        with pytest.raises(UserError, match="another drafting"):
            build(place, certificate=str(place / certificate), **parts)


def test_scopes_name_ends_of_drafts_and_nothing_where_there_are_none() -> None:
    from gistgate.certificates.calibration import Method

    method = Method("prob", "model", 5, "r", (0.4,))
    bare = decoding_scope(method, TARGET, DRAFT, TOKENIZER, None, 1, drafting={})
    bound = decoding_scope(method, TARGET, DRAFT, TOKENIZER, None, 1, drafting={"stopping": ENDS.binding})
    assert "drafting" not in bare and bound == {**bare, "drafting": {"stopping": ENDS.binding}}


def test_a_hybrid_takes_costs_and_ends_from_its_policy(place: Path) -> None:
    drafter = build(place, drafter="hybrid", stop_drafting=str(place / "stop.json")).drafter
    assert isinstance(drafter, ModelOrTextDrafter) and drafter.options[1].cost == 0.2
    assert asks_draft("hybrid") and asks_draft("model") and not asks_draft("lookup") and not asks_draft("sen")
    assert {name for name in DRAFTERS if asks_draft(name)} == {"model", "tree", "cascade", "hybrid"}


@pytest.mark.parametrize("drafter", ["model", "hybrid", "tree"])
def test_a_policy_of_another_rule_is_told(place: Path, drafter: str) -> None:
    replace(ENDS, measured={**ENDS.measured, "rule": "fly"}).save(place / "fly.json")
    parts = {"drafter": drafter, "stop_drafting": str(place / "fly.json"), "rule": "exact"}
    with pytest.warns(UserWarning, match="fitted to the rule 'fly', and 'exact' keeps another share"):
        build(place, **parts)
    replace(ENDS, measured={**ENDS.measured, "rule": "exact"}).save(place / "exact.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(place, **{**parts, "stop_drafting": str(place / "exact.json")})


@pytest.mark.parametrize(
    "parts, sentence",
    [
        ({"quantise_draft": "int3"}, "cannot be quantised to 'int3'"),
        ({"stop_drafting": "2"}, "Give a probability"),
        ({"stop_drafting": "nothing.json"}, "nothing.json is missing"),
        ({"stop_drafting": "0.4", "drafter": "cascade"}, "'cascade' does not ask when its drafts stop paying"),
        ({"stop_drafting": "0.4", "drafter": "lookup"}, "'lookup' does not ask"),
        ({"drafter": "hybrid"}, "measured costs"),
        ({"draft_vocabulary": "nothing.json"}, "nothing.json is missing"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(place: Path, parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(place, **parts)


def test_a_loaded_draft_is_made_lighter_in_place(place: Path) -> None:
    draft = copy.deepcopy(DRAFT)
    for _ in range(2):
        assert build(place, draft=draft, quantise_draft="int8").drafter.model is draft  # type: ignore[union-attr]
    with pytest.raises(UserError, match="quantised already"):
        build(place, draft=draft, quantise_draft="int4")
