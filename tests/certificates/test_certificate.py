"""A certificate is taken over where everything it names agrees, and nowhere else."""

import json
from dataclasses import replace

import pytest
import torch

from gistgate.certificates.certificate import CERTIFICATE_FILE, Certificate, gate_hash, read_certificate
from gistgate.cli.show import proved
from gistgate.errors import UserError
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity, TokenizerIdentity

IDENTITY = ModelIdentity("tiny", None, "llama", 8, 2, 100, "float32", "abc")


def gate_with(slope: float = 1.0) -> Gate:
    """A linear gate on the scalars."""
    config = GateConfig({"type": "linear"}, {"scalars": 8}, IDENTITY, None, TokenizerIdentity("tiny", "hash", 100))
    gate = Gate(config)
    gate.head.first.weight.data = torch.full((1, 8), slope)
    return gate


def certificate_of(gate: Gate, **changes) -> Certificate:
    """A certificate for that gate."""
    made = Certificate(
        budget=0.01, confidence=0.95, rule="autojudge", drafter="model", block=8, settings={"risk": 0.2}, knob="risk",
        n=2000, loss=0.002, bound=0.0075, bound_kind="exact", harm=0.004, harm_bound=0.011, discordant=13, score="task",
        mean_accepted_length=6.5, binding={"gate": gate_hash(gate), "block": 8},
    )  # fmt: skip
    return replace(made, **changes)


def test_it_is_loaded_with_its_gate_and_gives_an_operating_point(tmp_path):
    gate = gate_with()
    gate.save(tmp_path)
    certificate_of(gate).save(tmp_path)
    loaded = Gate.load(tmp_path)
    assert loaded.certificate == certificate_of(gate)
    point = loaded.operating_point(0.01)
    assert (point.knob, point.block, point.bound) == (0.2, 8, 0.0075)
    with pytest.raises(UserError, match=r"certified: 0\.01"):
        loaded.operating_point(0.005)


def test_other_weights_make_it_worthless(tmp_path):
    gate_with(2.0).save(tmp_path)
    certificate_of(gate_with(1.0)).save(tmp_path)
    with pytest.warns(UserWarning, match="does not hold here, because of another gate"):
        loaded = Gate.load(tmp_path)
    assert loaded.certificate is None
    with pytest.raises(UserError, match="no setting certified"):
        loaded.operating_point(0.01)


def test_a_certificate_of_another_rule_is_no_point_of_the_gate(tmp_path):
    gate = gate_with()
    gate.save(tmp_path)
    certificate_of(gate, rule="fly", settings={"theta": 0.5}, knob="theta").save(tmp_path)
    with pytest.raises(UserError, match="no setting certified"):
        Gate.load(tmp_path).operating_point(0.5)


@pytest.mark.parametrize(
    "changes",
    [{"score": "logprob"}, {"drafter": "lookup"}, {"confidence": 0.5}, {"settings": {"risk": 0.2, "other": 1}}],
)
def test_a_certificate_of_something_else_is_no_point_of_the_gate(changes):
    gate = gate_with()
    gate.certificate = certificate_of(gate, **changes)
    with pytest.raises(UserError, match="no setting certified"):
        gate.operating_point(0.01)


def test_another_drafter_or_less_confidence_counts_where_it_is_asked_for():
    gate = gate_with()
    gate.certificate = certificate_of(gate, drafter="lookup", confidence=0.9)
    assert gate.operating_point(0.01, "lookup", confidence=0.9).knob == 0.2
    with pytest.raises(UserError, match="no setting certified"):
        gate.operating_point(0.01, "model", confidence=0.9)


def test_whatever_is_used_otherwise_is_named():
    gate = gate_with()
    certificate = certificate_of(gate)
    assert certificate.mismatch(gate, block=8) is None
    assert "another block (8 certified, 16 here)" in (certificate.mismatch(gate, block=16) or "")


def test_a_damaged_file_is_one_sentence(tmp_path):
    assert read_certificate(tmp_path) is None
    (tmp_path / CERTIFICATE_FILE).write_text(json.dumps({"budget": 0.01}))
    with pytest.raises(UserError, match="is no certificate"):
        read_certificate(tmp_path)


def test_it_says_what_it_proves():
    text = proved(certificate_of(gate_with()))
    assert "loses at most 0.75 points (budget 1) with 95 % confidence" in text
    assert "from 2000 prompts of which 13 differ" in text
