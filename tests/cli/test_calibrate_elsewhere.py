"""The command that a gate names on other weights is one that the command line takes and whose
models load.
"""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from typer.testing import CliRunner

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.build import Builder
from gistgate.certificates.decoder import load_parts
from gistgate.cli import calibration
from gistgate.cli.calibrate import Options
from gistgate.cli.main import app
from gistgate.core.identity import identify_model
from gistgate.core.utils import UserError
from gistgate.gate import Gate
from gistgate.models.lighter import Subset
from gistgate.models.loading import load_draft, load_target
from gistgate.models.options import DecodeOptions
from tests.certificates import proofs
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

TOKENIZER = byte_tokenizer()


@pytest.fixture
def place(tmp_path):
    """target/, draft/, the target's other weights in moved/, and the tokens that a draft may
    propose, in a folder.
    """
    folder = tmp_path / "my models"
    target, draft = tiny_pair()
    save_pair(folder, target, draft, TOKENIZER)
    with torch.no_grad():
        target.model.layers[1].mlp.down_proj.weight.add_(0.01)
    target.save_pretrained(folder / "moved")
    TOKENIZER.save_pretrained(folder / "moved")
    texts = TOKENIZER(["Tom has five apples."]).input_ids
    Subset.count(texts, 40, TOKENIZER, draft, [TOKENIZER.eos_token_id]).save(folder / "words.json")
    return folder


def make_gate(
    place: Path, target: PreTrainedModel, draft: PreTrainedModel | None, **certificate: Any
) -> Path:
    """A gate of these partners, with a certificate of other weights where `certificate` says
    something.
    """
    proofs.linear_gate(target, draft, labels={"task": "sums"}).save(place / "gate")
    if certificate:
        scope = {"target": {"fingerprint": "another"}, **certificate.pop("scope", {})}
        proofs.certificate(
            proofs.point(0.03, settings={"risk": 0.7}), **certificate, scope=scope
        ).save(place / "gate")
    return place / "gate"


def sentence(gate: Path, target: PreTrainedModel, draft: PreTrainedModel | None) -> str:
    """What the gate says on these weights."""
    said = Gate.load(gate, target, draft, TOKENIZER, other_weights=True).strict_reason
    assert said is not None
    return said


def loaded(options: Options) -> Builder:
    return load_parts(options.target, options.gguf, options.quantise, options.decoding)


def options_of(said: str, monkeypatch: pytest.MonkeyPatch) -> Options:
    """The options that the command line makes of the command in a sentence."""
    taken: list[Options] = []

    def certify(options: Options) -> None:
        taken.append(options)
        raise UserError("enough")

    monkeypatch.setattr(calibration, "certify", certify)
    done = CliRunner().invoke(app, shlex.split(said.split("`")[1])[1:])
    assert str(done.exception) == "enough", done.output
    return taken[0]


def test_the_draft_of_the_command_is_as_light_as_the_one_that_runs(place, monkeypatch):
    target = load_target(str(place / "target")).model
    draft = load_draft(place / "draft", target, TOKENIZER, quantised="int4")
    gate, moved = make_gate(place, target, draft), load_target(str(place / "moved")).model
    options = options_of(sentence(gate, moved, draft), monkeypatch)
    assert options.decoding.quantise_draft == "int4"
    found = loaded(options)
    assert found.gate is not None and found.draft is not None
    assert list(map(identify_model, (found.target, found.draft))) == list(
        map(identify_model, (moved, draft))
    )


def test_calibrate_takes_the_bits_of_the_gate_s_draft(place):
    target = load_target(str(place / "target")).model
    gate = make_gate(place, target, load_draft(place / "draft", target, quantised="int4"))
    decoding = DecodeOptions(gate=str(gate), draft=str(place / "draft"))
    found = loaded(Options(task="sums", target=str(place / "moved"), decoding=decoding))
    assert getattr(found.draft, "quantised", None) == "int4"


@pytest.mark.parametrize(
    "certificate, expected",
    [
        ({}, (None, None, None)),
        ({"block": 3}, ("autojudge", "model", 3)),
        ({"rule": "ensemble-gate", "drafter": "tree", "block": 5}, ("ensemble-gate", "tree", 5)),
    ],
)
def test_the_command_calibrates_the_same_way_of_decoding(place, monkeypatch, certificate, expected):
    target, draft = (load_target(str(place / name)).model for name in ("target", "draft"))
    said = sentence(
        make_gate(place, target, draft, **certificate),
        load_target(str(place / "moved")).model,
        draft,
    )
    options = options_of(said, monkeypatch).decoding
    assert (options.rule, options.drafter, options.block) == expected
