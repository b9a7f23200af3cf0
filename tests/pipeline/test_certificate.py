"""From a budget to a certificate.json on a tiny pair and a made-up task."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from gistgate import cli
from gistgate.errors import UserError
from gistgate.gates.certificate import read_certificate
from pipeline import task_files
from pipeline.certificate import check_possible, default_n, plan_sentence
from pipeline.certificate_command import Options, certify
from pipeline.certificate_scores import CLIP, LogProbability, PairwiseJudge
from pipeline.certificate_stage import compared
from tests.tiny import byte_tokenizer, tiny_pair, write_task


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a tiny target and draft."""
    place = tmp_path_factory.mktemp("pair")
    for name, model in zip(("target", "draft"), tiny_pair(), strict=True):
        model.save_pretrained(place / name)
        byte_tokenizer().save_pretrained(place / name)
    return place / "target", place / "draft"


def test_a_plan_is_said_before_anything_is_decoded():
    text = plan_sentence(0.01, 0.95, 500)
    assert "831 at 2%" in text
    assert "There are 500." in text
    assert default_n(0.02, 0.95, True, 10_000) == 2 * 466
    assert default_n(0.02, 0.95, True, 300) == 300


def test_what_is_impossible_is_refused_with_the_number_that_would_do():
    with pytest.raises(UserError, match=r"50 prompts cannot certify a budget of 1\.00% .* that takes \d+"):
        check_possible(0.01, 0.95, 50)


def test_log_probability_prefers_the_targets_own_answer():
    tiny_model, _ = tiny_pair()
    tiny_model.lm_head.weight.data *= 30
    score = LogProbability(tiny_model, batch_size=3)
    prompt = [3, 4, 5]
    with torch.no_grad():
        own = int(tiny_model(torch.tensor([prompt])).logits[0, -1].argmax())
        logp = tiny_model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1)
    other = (own + 1) % 50
    prompts = [{"ids": prompt}, {"ids": [1, 2]}, {"ids": prompt}]
    d = score.differences(prompts, [[own], [7], [own]], [[other], [7], []])
    assert d[0] == pytest.approx((max(float(logp[own]), -CLIP) - max(float(logp[other]), -CLIP)) / CLIP, abs=1e-5)
    assert d[0] > 0
    assert d[1] == 0
    assert d[2] > 0.0


def test_a_judge_that_prefers_the_first_place_says_nothing(monkeypatch):
    judge = PairwiseJudge(None, None, byte_tokenizer())
    monkeypatch.setattr(PairwiseJudge, "prefers_first", lambda self, context, one, other: True)
    assert judge.differences([{"context": ""}], [[5]], [[6]]).tolist() == [0.0]
    monkeypatch.setattr(PairwiseJudge, "prefers_first", lambda self, context, one, other: one < other)
    assert np.abs(judge.differences([{"context": ""}], [[5]], [[6]])).tolist() == [1.0]


def test_the_command_writes_a_certificate_that_fits_what_was_calibrated(tmp_path, monkeypatch, folders, capsys):
    monkeypatch.chdir(tmp_path)
    tasks = write_task(tmp_path, num_train=90)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, tasks))
    target, draft = folders
    options = Options(
        task="sums", budget=0.2, rule="prob-ratio", target=str(target), draft=str(draft), prompts=60, development=20,
        out=tmp_path / "proof", batch_size=16,
    )  # fmt: skip
    text = certify(options)
    assert "A budget of 20.00%" in capsys.readouterr().out
    kept = read_certificate(Path(tmp_path / "proof"))
    assert kept is not None
    assert (kept.rule, kept.n, kept.score) == ("prob-ratio", 60, "task")
    assert kept.bound <= 0.2
    assert "certificate prob-ratio" in text
    model = LlamaForCausalLM.from_pretrained(target)
    assert kept.mismatch(target=model) is None
    model.model.norm.weight.data += 1
    assert "because of another target" in (kept.mismatch(target=model) or "")


def test_options_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="Without --gate"):
        Options(task="sums")
    with pytest.raises(UserError, match="cannot be certified"):
        Options(task="sums", gate="x", budget=0.0)


def test_the_summary_compares_what_was_certified():
    def report(learned, tau, refusal=None):
        row = {
            "refusal": refusal, "mean_accepted_length": tau, "rounds": [[int(10 * tau), 10]] * 20, "settings": {},
            "block": 16, "n": 20, "loss": 0.0, "bound": 0.01, "harm": 0.0, "harm_bound": 0.1, "discordant": 0,
        }  # fmt: skip
        return {"learned": learned, "budgets": {"0.02": row}}

    both = {"gate": report(True, 8.0), "fly": report(False, 4.0), "sense": report(False, 5.0)}
    ratio = compared(both, "0.02")["ratio"]
    assert (ratio["learned"], ratio["free"], ratio["value"]) == ("gate", "sense", 1.6)
    assert ratio["interval"] == pytest.approx([1.6, 1.6])
    refused = {"gate": report(True, 8.0, "no"), "fly": report(False, 4.0)}
    assert compared(refused, "0.02")["ratio"] is None


def test_without_the_pipeline_the_command_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"'scipy' is missing.*\[pipeline\]"):
        cli.pipeline_module("certificate_command")
