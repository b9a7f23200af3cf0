"""The generation function of an exported gate, called in this process: what it refuses, and generate's other habits."""

import gc
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
)

from gistgate.core.certificate import read_certificate
from gistgate.core.gate import Gate
from gistgate.core.guards import make_guards
from gistgate.core.identity import identify_model, model_scope
from gistgate.core.utils import UserError
from gistgate.export.generate import LOADED, MOST, generate, loaded_parts, once
from gistgate.models.options import DecodeOptions
from tests.architectures import tiny_model
from tests.export.exported import EOS, PAD
from tests.tiny import byte_tokenizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 2}, "greedy decoding and sampling .* but got beam search"),
        ({"assistant_model": "draft"}, "Pass the draft as draft_model="),
        ({"streamer": object()}, "streamer=, which this decoder does not support"),
        ({"inputs_embeds": torch.zeros(1, 1, 32)}, "Pass input_ids="),
        ({"repetition_penalty": 1.3}, "asks for a RepetitionPenaltyLogitsProcessor"),
        ({"min_new_tokens": 5}, "asks for a MinLengthLogitsProcessor"),
        ({"logits_processor": LogitsProcessorList([lambda ids, z: z])}, "asks for a function"),
        ({"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])}, "MaxTimeCriteria, which cannot look"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"stop_strings": ["x"]}, "no tokenizer was given"),
        ({"rule": "autojugde"}, "Did you mean 'autojudge'"),
        ({"budget": 0.03, "risk": 0.1}, "both say how loose"),
        ({"gate": None, "budget": 0.03}, "Name a gate or a certificate as well"),
        ({"gate": None, "rule": "autojudge"}, "needs a gate"),
        ({"draft_model": None}, "needs a draft model"),
        ({"draft_model": "/nowhere/at/all"}, "The draft '/nowhere/at/all' could not be loaded"),
        ({"gate": "/nowhere/at/all"}, "neither a folder nor a reachable hub id"),
        ({"drafter": "oracle"}, "There is no drafter 'oracle'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(
    arguments: Any, message: str, pair: Any, gate: Gate, inputs: Any
) -> None:
    target, draft = pair
    with pytest.raises(UserError, match=message):
        generate(target, **{"draft_model": draft, "gate": gate, "max_new_tokens": 8, **inputs, **arguments})


def test_a_mistyped_argument_and_a_gate_of_another_target_are_refused(place: Path, pair: Any, inputs: Any) -> None:
    with pytest.raises(ValueError, match="thrreshold"):
        generate(*pair, place / "gate", thrreshold=0.1, **inputs)
    with pytest.raises(UserError, match="does not fit the target"):
        generate(tiny_model("qwen2"), pair[1], place / "gate", max_new_tokens=8, **inputs)


@pytest.mark.parametrize("given", [byte_tokenizer(), None], ids=["given", "of the target's folder"])
def test_a_draft_with_another_tokenizer_is_refused(
    tmp_path: Path, place: Path, pair: Any, inputs: Any, given: Any
) -> None:
    """By name and as a loaded model, and also where the same model was decoded with before."""
    pair[1].save_pretrained(tmp_path)
    byte_tokenizer(reverse=True).save_pretrained(tmp_path)
    for draft in (tmp_path, AutoModelForCausalLM.from_pretrained(tmp_path)):
        for _ in range(2):
            with pytest.raises(UserError, match="another tokenizer: id 3 is"):
                generate(pair[0], draft, rule="exact", tokenizer=given, max_new_tokens=8, **inputs)
    generate(pair[0], place / "draft", rule="exact", max_new_tokens=8, **inputs)  # is loaded now, and yet compared
    other = byte_tokenizer(reverse=True)
    with pytest.raises(UserError, match="another tokenizer: id 3 is"):
        generate(pair[0], place / "draft", rule="exact", tokenizer=other, max_new_tokens=8, **inputs)


def test_another_rule_runs_with_a_warning(pair: Any, gate: Gate, inputs: Any) -> None:
    with pytest.warns(UserWarning, match="the rule 'autojudge' was certified, not 'prob'"):
        generate(*pair, gate, rule="prob", r=0.5, max_new_tokens=8, **inputs)


def test_without_a_tokenizer_unknown_markers_are_told(pair: Any, gate: Gate, inputs: Any) -> None:
    with pytest.warns(UserWarning, match="the chat, think and tool markers are unknown"):
        generate(*pair, gate, max_new_tokens=8, **inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Without tokenizer=")
        generate(*pair, gate, tokenizer=byte_tokenizer(), max_new_tokens=8, **inputs)
        generate(*pair, rule="exact", max_new_tokens=8, **inputs)


def test_partners_of_a_loaded_gate_stay_alive() -> None:
    """A key names them by their ids, which a later object could get."""
    target, draft = tiny_model("llama"), tiny_model("llama", seed=1)
    known = ref(draft)
    assert once(target, ("gate", id(draft)), lambda: "loaded", draft, None) == "loaded"
    del draft
    gc.collect()
    assert known() is not None and once(target, ("gate", id(known())), lambda: "again", known()) == "loaded"


def test_it_serves_generates_other_habits(pair: Any, inputs: Any, recwarn: pytest.WarningsRecorder) -> None:
    """Settings in a GenerationConfig, a dictionary as result, several answers per prompt, padding found by itself."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=8, pad_token_id=PAD, eos_token_id=EOS)
    expected = target.generate(**inputs, max_new_tokens=8, do_sample=False)
    found = generate(target, draft, inputs=inputs["input_ids"], generation_config=config, return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected)
    torch.manual_seed(0)
    several = generate(target, draft, max_new_tokens=8, do_sample=True, num_return_sequences=3, **inputs)
    assert several.shape[0] == 9
    assert len({tuple(row) for row in several.tolist()}) > 3
    assert not [warning for warning in recwarn if "certificate" in str(warning.message)]


def test_a_second_gate_in_the_same_folder_is_read_again(place: Path, pair: Any, gate: Gate, inputs: Any) -> None:
    first: list[Any] = []
    generate(*pair, place / "gate", max_new_tokens=8, report=first, **inputs)
    certificate = place / "gate" / "certificate.json"
    text = certificate.read_text()
    try:
        known = read_certificate(place / "gate")
        assert known is not None
        points = [replace(point, settings={**point.settings, "risk": -1.0}) for point in known.points]
        replace(known, points=tuple(points)).save(place / "gate")
        os.utime(certificate, ns=(1, 1))
        second: list[Any] = []
        generate(*pair, place / "gate", max_new_tokens=8, report=second, **inputs)
    finally:
        certificate.write_text(text)
    assert sum(answer.statistics.loose for answer in first) > 0
    assert sum(answer.statistics.loose for answer in second) == 0


def test_stop_texts_of_a_configuration_find_their_tokenizer(pair: Any, inputs: Any, monkeypatch: Any) -> None:
    """transformers makes a criterion of them, and asks for the tokenizer that was passed here."""
    asked: dict[str, Any] = {"rule": "exact", "tokenizer": byte_tokenizer(), **inputs}
    named = generate(*pair, max_new_tokens=24, stop_strings=["m", "n", "#"], **asked)
    config = GenerationConfig(max_new_tokens=24, stop_strings=["m", "n", "#"])
    assert torch.equal(generate(*pair, generation_config=config, **asked), named)
    monkeypatch.setattr(pair[0].generation_config, "stop_strings", ["m"], raising=False)
    with pytest.raises(UserError, match="Pass them as stop_strings="):
        generate(*pair, max_new_tokens=8, **asked)


def test_a_loaded_gate_loses_a_certificate_that_was_made_for_another_dtype(place: Path, pair: Any) -> None:
    target, draft = (
        AutoModelForCausalLM.from_pretrained(place / name, dtype="bfloat16") for name in ("target", "draft")
    )
    loaded = Gate.load(place / "gate")
    assert loaded.certificate is not None
    scope = {**loaded.certificate.scope, "target": model_scope(identify_model(pair[0]))}
    loaded.certificate = replace(loaded.certificate, scope=scope)
    with pytest.warns(UserWarning, match="does not hold here, because of another .*dtype"):
        kept = loaded_parts(DecodeOptions(draft=draft, gate=loaded), target, None).gate
    assert kept.certificate is None and loaded.certificate is not None and kept.config is loaded.config
    assert loaded_parts(DecodeOptions(draft=pair[1], gate=loaded), pair[0], None).gate is loaded


def test_a_loaded_draft_is_made_lighter_before_the_gate_is_compared_with_it(place: Path, pair: Any) -> None:
    draft = AutoModelForCausalLM.from_pretrained(place / "draft")
    uncertified = shutil.copytree(place / "gate", place / "uncertified")
    (uncertified / "certificate.json").unlink(missing_ok=True)
    gate = loaded_parts(DecodeOptions(draft=draft, quantise_draft="int8", gate=uncertified), pair[0], None).gate
    assert gate.strict_reason is not None and "load the draft without --quantise-draft" in gate.strict_reason


def test_parts_that_are_used_no_longer_are_let_go() -> None:
    target = tiny_model("llama")
    for number in range(MOST + 3):
        once(target, ("draft", number), lambda: "loaded")
        once(target, ("draft", 0), lambda: "again")
    assert len(LOADED[target]) == MOST and once(target, ("draft", 1), lambda: "again") == "again"
    assert once(target, ("draft", 0), lambda: "third") == "loaded"


def test_a_guard_may_be_one_name_and_a_gate_knows_its_folder(place: Path, pair: Any, inputs: Any) -> None:
    one = generate(*pair, rule="exact", guards="loop", max_new_tokens=8, **inputs)
    assert torch.equal(one, generate(*pair, rule="exact", guards=["loop"], max_new_tokens=8, **inputs))
    loaded = Gate.load(place / "gate")
    assert loaded.folder == place / "gate"
    with pytest.raises(UserError, match=str(place / "gate")):  # it holds no such guard, and that is what is said
        make_guards(["domain"], loaded)
    with pytest.raises(UserError, match="Name the gate's folder"):
        make_guards(["domain"], Gate(loaded.config))
