"""The generation function of an exported gate, called in this process: what it refuses, and
generate's other habits.
"""

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

from gistgate.core.guards import make_guards
from gistgate.core.identity import identify_model, model_scope
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import read_certificate
from gistgate.export.generate import generate, loaded_parts, once
from gistgate.gate import Gate
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
        ({"repetition_penalty": 1.3}, "asks for a RepetitionPenaltyLogitsProcessor"),
        ({"logits_processor": LogitsProcessorList([lambda ids, z: z])}, "asks for a function"),
        (
            {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])},
            "MaxTimeCriteria, which cannot look",
        ),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"stop_strings": ["x"]}, "no tokenizer was given"),
        ({"rule": "autojugde"}, "Did you mean 'autojudge'"),
        ({"budget": 0.03, "risk": 0.1}, "both say how loose"),
        ({"gate": None, "budget": 0.03}, "Name a gate or a certificate as well"),
        ({"gate": None, "rule": "autojudge"}, "needs a gate"),
        ({"draft_model": None}, "needs a draft model"),
        ({"gate": "/nowhere/at/all"}, "neither a folder nor a reachable hub id"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(
    arguments: Any, message: str, pair: Any, gate: Gate, inputs: Any
) -> None:
    target, draft = pair
    with pytest.raises(UserError, match=message):
        generate(
            target,
            **{"draft_model": draft, "gate": gate, "max_new_tokens": 8, **inputs, **arguments},
        )


def test_a_mistyped_argument_and_a_gate_of_another_target_are_refused(
    place: Path, pair: Any, inputs: Any
) -> None:
    with pytest.raises(ValueError, match="thrreshold"):
        generate(*pair, place / "gate", thrreshold=0.1, **inputs)
    with pytest.raises(UserError, match="does not fit the target"):
        generate(tiny_model("qwen2"), pair[1], place / "gate", max_new_tokens=8, **inputs)


def test_a_draft_with_another_tokenizer_is_refused(
    tmp_path: Path, place: Path, pair: Any, inputs: Any
) -> None:
    """Also where the same model was decoded with before, with its own tokenizer."""
    other, asked = byte_tokenizer(reverse=True), {"rule": "exact", "max_new_tokens": 8, **inputs}
    pair[1].save_pretrained(tmp_path)
    other.save_pretrained(tmp_path)
    generate(pair[0], place / "draft", **asked)
    for draft, given in ((tmp_path, None), (place / "draft", other)):
        with pytest.raises(UserError, match="another tokenizer: id 3 is"):
            generate(pair[0], draft, tokenizer=given, **asked)


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
    assert (
        known() is not None
        and once(target, ("gate", id(known())), lambda: "again", known()) == "loaded"
    )


def test_it_serves_generates_other_habits(
    pair: Any, inputs: Any, recwarn: pytest.WarningsRecorder
) -> None:
    """Settings in a GenerationConfig, a dictionary as result, several answers per prompt, padding
    found by itself.
    """
    target, draft = pair
    config = GenerationConfig(max_new_tokens=8, pad_token_id=PAD, eos_token_id=EOS)
    expected = target.generate(**inputs, max_new_tokens=8, do_sample=False)
    found = generate(
        target,
        draft,
        inputs=inputs["input_ids"],
        generation_config=config,
        return_dict_in_generate=True,
    )
    assert torch.equal(found.sequences, expected)
    torch.manual_seed(0)
    several = generate(
        target, draft, max_new_tokens=8, do_sample=True, num_return_sequences=3, **inputs
    )
    assert several.shape[0] == 9
    assert len({tuple(row) for row in several.tolist()}) > 3
    assert not [warning for warning in recwarn if "certificate" in str(warning.message)]


def test_a_second_gate_in_the_same_folder_is_read_again(
    place: Path, pair: Any, inputs: Any, tmp_path: Path
) -> None:
    folder, reports = shutil.copytree(place / "gate", tmp_path / "gate"), ([], [])
    generate(*pair, folder, max_new_tokens=8, report=reports[0], **inputs)
    known: Any = read_certificate(folder)
    points = [replace(point, settings={**point.settings, "risk": -1.0}) for point in known.points]
    replace(known, points=tuple(points)).save(folder)
    os.utime(folder / "certificate.json", ns=(1, 1))
    generate(*pair, folder, max_new_tokens=8, report=reports[1], **inputs)
    first, second = (sum(answer.statistics.loose for answer in report) for report in reports)
    assert first > 0 == second


def test_stop_texts_of_a_configuration_find_their_tokenizer(
    pair: Any, inputs: Any, monkeypatch: Any
) -> None:
    """transformers makes a criterion of them, and asks for the tokenizer that was passed here."""
    asked: dict[str, Any] = {"rule": "exact", "tokenizer": byte_tokenizer(), **inputs}
    named = generate(*pair, max_new_tokens=24, stop_strings=["m", "n", "#"], **asked)
    config = GenerationConfig(max_new_tokens=24, stop_strings=["m", "n", "#"])
    assert torch.equal(generate(*pair, generation_config=config, **asked), named)
    monkeypatch.setattr(pair[0].generation_config, "stop_strings", ["m"], raising=False)
    with pytest.raises(UserError, match="Pass them as stop_strings="):
        generate(*pair, max_new_tokens=8, **asked)


def test_a_loaded_gate_loses_a_certificate_that_was_made_for_another_dtype(
    place: Path, pair: Any
) -> None:
    target, draft = (
        AutoModelForCausalLM.from_pretrained(place / name, dtype="bfloat16")
        for name in ("target", "draft")
    )
    loaded = Gate.load(place / "gate")
    assert loaded.certificate is not None
    scope = {**loaded.certificate.scope, "target": model_scope(identify_model(pair[0]))}
    loaded.certificate = replace(loaded.certificate, scope=scope)
    with pytest.warns(UserWarning, match="does not hold here: .*dtype"):
        kept = loaded_parts(DecodeOptions(draft=draft, gate=loaded), target, None).gate
    assert (
        kept.certificate is None and loaded.certificate is not None and kept.config is loaded.config
    )
    assert loaded_parts(DecodeOptions(draft=pair[1], gate=loaded), pair[0], None).gate is loaded


def test_a_loaded_draft_is_made_lighter_before_the_gate_is_compared_with_it(
    place: Path, pair: Any
) -> None:
    draft = AutoModelForCausalLM.from_pretrained(place / "draft")
    uncertified = shutil.copytree(place / "gate", place / "uncertified")
    (uncertified / "certificate.json").unlink(missing_ok=True)
    gate = loaded_parts(
        DecodeOptions(draft=draft, quantise_draft="int8", gate=uncertified), pair[0], None
    ).gate
    assert (
        gate.strict_reason is not None
        and "load the draft with --quantise-draft none" in gate.strict_reason
    )


def test_the_guard_of_a_domain_lies_in_its_gates_folder(place: Path) -> None:
    loaded = Gate.load(place / "gate")
    with pytest.raises(
        UserError, match=str(place / "gate")
    ):  # it holds no such guard, and that is what is said
        make_guards(["domain"], loaded)
    with pytest.raises(UserError, match="Name the gate's folder"):
        make_guards(["domain"], Gate(loaded.config))
