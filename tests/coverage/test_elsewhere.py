"""A gate on other weights of its architecture: strict until it is certified there, and the command
that does it.
"""

import copy
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gistgate.build import build as build_decoder
from gistgate.core.decoder import Decoder
from gistgate.core.files import write_json
from gistgate.core.identity import gate_hash, identify_model, identify_tokenizer, model_scope
from gistgate.core.utils import UserError
from gistgate.export.generate import checked_gate, generate
from gistgate.gate import Gate, GateConfig, calibrate_command, until_certified
from gistgate.models.options import DecodeOptions
from gistgate.models.packed import quantise
from gistgate.models.tuned import chosen_among
from tests.architectures import pair
from tests.certificates import proofs
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = tiny_pair()


def requantised(model: PreTrainedModel) -> PreTrainedModel:
    """The same architecture with weights that moved a little."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight.add_(0.01)
    return other


OTHER = requantised(TARGET)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A gate that is certified for TARGET and DRAFT at K = 3, with a blank in its path."""
    folder = tmp_path / "my gate"
    identities = identify_model(TARGET), identify_model(DRAFT), identify_tokenizer(TOKENIZER)
    gate = Gate(
        GateConfig({"type": "linear"}, {"h_tok:post": 32}, *identities, labels={"task": "sums"})
    )
    gate.save(folder)
    certify(folder, TARGET)
    return folder


def certify(folder: Path, target: PreTrainedModel, draft: PreTrainedModel = DRAFT) -> None:
    """Write the certificate that a calibration on these models would have written."""
    scope = {
        "target": model_scope(identify_model(target)),
        "draft": model_scope(identify_model(draft)),
        "tokenizer": identify_tokenizer(TOKENIZER).vocabulary, "temperature": 0.0,
        "gate": gate_hash(Gate.load(folder)), "guards": [],
    }  # fmt: skip
    proofs.certificate(proofs.point(0.03, settings={"risk": 0.7}), block=3, scope=scope).save(
        folder
    )


def build(
    folder: Path, target: PreTrainedModel, draft: PreTrainedModel = DRAFT, **options: Any
) -> Decoder:
    named = DecodeOptions(gate=str(folder), draft=draft, **options)
    return build_decoder(target, TOKENIZER, named).decoder


@pytest.mark.parametrize(
    "options", [{}, {"settings": {"risk": 0.7}}, {"rule": "autojudge"}, {"budget": 0.03}]
)
def test_elsewhere_every_token_is_verified_strictly(place: Path, options: dict[str, Any]) -> None:
    """Other weights of the draft count as well as those of the target."""
    assert build(place, TARGET).rule.id == "autojudge"
    for role, pair_ in (("target", (OTHER, DRAFT)), ("draft", (TARGET, requantised(DRAFT)))):
        with pytest.warns(UserWarning, match=rf"other weights of the same architecture \({role}\)"):
            assert build(place, *pair_, **options).rule.id == "exact"


def test_a_draft_with_other_rounding_counts_as_well_and_both_ways_out_are_named(
    place: Path,
) -> None:
    """Weights of four bits are for processors: on a GPU the same gate meets the draft as it is."""
    light = quantise(copy.deepcopy(DRAFT), "int4")
    with pytest.warns(
        UserWarning, match=r"other weights of the same architecture \(draft\)"
    ) as heard:
        assert build(place, TARGET, light).rule.id == "exact"
    said = str(heard[0].message)
    assert (
        "--quantise-draft int4" in said
        and "or load the draft with --quantise-draft none, as in training" in said
    )
    identities = identify_model(TARGET), identify_model(light), identify_tokenizer(TOKENIZER)
    config = GateConfig({"type": "linear"}, {}, *identities)
    command = calibrate_command(place, config, None, {"target": TARGET, "draft": DRAFT})
    sentence = until_certified(command, config, DRAFT, ["draft"])
    assert (
        "--quantise-draft none" in sentence
        and "or load the draft with --quantise-draft int4" in sentence
    )


def test_the_warning_names_the_command_that_certifies(place: Path) -> None:
    sentence = Gate.load(place, OTHER, DRAFT, TOKENIZER, other_weights=True).strict_reason
    assert sentence is not None
    command = shlex.split(sentence.split("`")[1])
    assert command[:2] == ["gistgate", "calibrate"]
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert (options["--task"], options["--gate"], options["--block"]) == ("sums", str(place), "3")
    assert {"--target", "--draft"} <= options.keys()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"task": "sums, other", "code": True}, "--task TASK"),
        ({"task": "sums"}, "--task sums"),
        ({}, "--task TASK"),
    ],
)
def test_the_command_names_one_task_and_gives_the_consent_that_it_needs(
    labels: dict[str, Any], said: str
) -> None:
    """A gate that learned from several tasks is certified for each of them."""
    identities = identify_model(TARGET), identify_model(DRAFT), identify_tokenizer(TOKENIZER)
    config = GateConfig({"type": "linear"}, {"h_tok:post": 32}, *identities, labels=labels)
    command = calibrate_command(Path("gate"), config, None, {"target": OTHER, "draft": None})
    assert said in command and ("--allow-code" in command) is ("code" in labels)


def test_certified_there_it_decides_again(place: Path) -> None:
    certify(place, OTHER)
    assert build(place, OTHER).rule.id == "autojudge"
    with pytest.warns(UserWarning, match="the target is another one|has no certificate"):
        assert build(place, TARGET).rule.id == "exact"


def test_a_rule_without_a_gate_runs_as_asked(place: Path) -> None:
    with pytest.warns(UserWarning, match="the rule 'prob' has no certificate"):
        assert build(place, OTHER, rule="prob", settings={"r": 0.3}).rule.id == "prob"


def test_lm_eval_refuses_rather_than_to_report_strict_figures_and_transformers_holds_back(
    place: Path,
) -> None:
    with pytest.raises(UserError, match="gistgate calibrate"):
        build_decoder(
            OTHER, TOKENIZER, DecodeOptions(gate=str(place), draft=DRAFT), policy="refuse"
        )
    gate = checked_gate(place, OTHER, DRAFT, TOKENIZER)
    with pytest.warns(UserWarning, match="verified strictly until"):
        assert (
            build_decoder(OTHER, TOKENIZER, DecodeOptions(gate=gate, draft=DRAFT)).decoder.rule.id
            == "exact"
        )


def prefer(folder: Path, target: PreTrainedModel) -> None:
    """What `gistgate tune` leaves behind: the choice of a setting that is certified on these
    weights.
    """
    kept, tuned = folder / "certificate.json", folder / "tuned/certificate.json"
    before = kept.read_bytes()
    certify(folder, target)
    tuned.parent.mkdir()
    kept.rename(tuned)
    kept.write_bytes(before)
    write_json(folder / "tuned/speed.json", {"certificate": chosen_among(folder)})


def test_a_choice_made_at_home_is_left_aside(place: Path) -> None:
    prefer(place, TARGET)
    assert build(place, TARGET).rule.id == "autojudge"
    with pytest.warns(UserWarning, match="verified strictly until"):
        assert build(place, OTHER).rule.id == "exact"
    with pytest.raises(UserError, match="the target is another one"):
        build(
            place, OTHER, certificate=str(place / "tuned")
        )  # who names it is not given anything else
    request = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 4, "do_sample": True}
    with pytest.warns(UserWarning, match="verified strictly until"):
        assert generate(OTHER, DRAFT, place, tokenizer=TOKENIZER, **request).shape == (1, 7)


def test_a_choice_made_here_stays(place: Path) -> None:
    prefer(place, OTHER)
    assert build(place, OTHER).rule.id == "autojudge"


def test_another_architecture_and_whoever_does_not_ask_stay_refused(place: Path) -> None:
    with pytest.raises(UserError, match="architecture should be llama, but is qwen2"):
        Gate.load(place, pair("qwen2")[0], other_weights=True)
    with pytest.raises(UserError, match="does not fit the target: its weights"):
        Gate.load(place, OTHER)
