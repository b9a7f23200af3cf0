"""A proof is taken over where everything it names agrees, and nowhere else."""

import json
from types import SimpleNamespace

import pytest

from gistgate.certificates.calibration import task_scope
from gistgate.core.identity import gate_hash
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import (
    CERTIFICATE_FILE,
    Certificate,
    read_certificate,
)
from gistgate.gate import Gate
from tests.certificates.proofs import certificate, gate_with, point
from tests.tiny import byte_tokenizer


def proof_of(gate: Gate, *points, **changes) -> Certificate:
    """A proof for that gate."""
    return certificate(*points, scope={"gate": gate_hash(gate), "block": 8}, block=8, **changes)


def test_it_is_loaded_with_its_gate_and_gives_an_operating_point(tmp_path):
    gate = gate_with()
    gate.save(tmp_path)
    proof_of(gate).save(tmp_path)
    loaded = Gate.load(tmp_path)
    assert loaded.certificate == proof_of(gate)
    found = loaded.operating_point(0.01)
    assert (found.settings, loaded.certificate.block, found.bound) == ({"risk": 0.2}, 8, 0.0075)
    with pytest.raises(UserError, match=r"certified: 0\.01"):
        loaded.operating_point(0.005)


def test_other_weights_make_it_worthless(tmp_path):
    gate_with(2.0).save(tmp_path)
    proof_of(gate_with(1.0)).save(tmp_path)
    with pytest.warns(UserWarning, match="does not hold here: the gate is another one"):
        loaded = Gate.load(tmp_path)
    assert loaded.certificate is None
    with pytest.raises(UserError, match="no setting certified"):
        loaded.operating_point(0.01)


def test_a_proof_in_another_score_is_no_point_of_the_gate():
    gate = gate_with()
    gate.certificate = proof_of(gate, score="logprob")
    with pytest.raises(UserError, match="bounds the score 'logprob'"):
        gate.operating_point(0.01)


def test_the_largest_budget_that_is_kept_decides_and_the_headline_is_the_default():
    points = [point(0.02, settings={"risk": 0.1}), point(0.03, settings={"risk": 0.2})]
    made = certificate(*points, point(0.05, certified=False))
    assert made.operating_point(0.025) is made.points[0]
    assert (
        made.operating_point()
        is made.operating_point(0.03)
        is made.operating_point(0.05)
        is made.points[1]
    )
    with pytest.raises(UserError, match=r"budget of 0.01 \(certified: 0.02, 0.03\)"):
        made.operating_point(0.01)


@pytest.mark.parametrize(
    "content, sentence",
    [
        ({"budget": 0.01}, "not that of a certificate"),
        ({"format_version": 2}, "is no certificate: 'points'"),
        (
            {"format_version": 2, "points": [{"bugdet": 1}], "sequence": []},
            "Did you mean|did you mean 'budget'",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path, content, sentence):
    assert read_certificate(tmp_path) is None
    (tmp_path / CERTIFICATE_FILE).write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        read_certificate(tmp_path)


def test_the_template_counts_for_chats_alone(monkeypatch):
    monkeypatch.setattr("gistgate.certificates.calibration.task_hash", lambda _: "t")
    for chat in (True, False):
        task = SimpleNamespace(
            stops=["", "Q:", "</s>"], prompting=SimpleNamespace(chat_template=chat, num_fewshot=0)
        )
        assert task_scope(task, [], byte_tokenizer())["stops"] == ["Q:"]  # the end token has an id
        assert ("template" in task_scope(task, [], byte_tokenizer())) is chat
        assert "template" not in task_scope(task, [])
