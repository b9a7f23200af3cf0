"""`gistgate tune` on a tiny pair: what takes part, what is saved, and how decoding follows it."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM

from gistgate.core.utils import UserError
from gistgate.coverage.certificate import read_certificate
from gistgate.drafters.stopping import Stopping
from gistgate.export.generate import generate
from gistgate.export.write import write_code
from gistgate.gate import Gate
from gistgate.measure import tune as tuning
from gistgate.models.options import DecodeOptions
from gistgate.models.tuned import tuned_certificate
from tests.certificates.proofs import point, proof_for

SCOPE = {
    "guards": [],
    "temperature": 0.0,
    "prompting": {"num_fewshot": 0, "chat_template": False, "system": None},
}
TIMES = {"plain": 4.0, "strict": 2.0, "autojudge": 1.0}


@pytest.fixture
def gate(pair, tmp_path):
    """A gate with a strict and a loose certified setting, in a folder of its own."""
    made = Gate.load(pair / "gate")
    made.save(tmp_path / "gate")
    points = (
        point(0.01, settings={"risk": 0.0}),
        point(0.03, settings={"risk": 1.0}),
        point(0.05, certified=False),
    )
    kept = proof_for(made, *points)
    replace(kept, scope={**kept.scope, **SCOPE}).save(tmp_path / "gate")
    return tmp_path / "gate"


@pytest.fixture
def tune(run, pair, gate, tmp_path, monkeypatch):
    """Call the command on four prompts with made-up seconds by the first word of a candidate's
    name.
    """
    (tmp_path / "prompts.txt").write_text("Tom has\nAnna gave\nIt is\nOne and\n")

    def call(*options, **times):
        def times_of(candidates, prompts, request):
            seconds = {**TIMES, **times}
            return {
                one.name: [seconds.get(one.name, seconds[one.name.split()[0]])] * len(prompts)
                for one in candidates
            }

        monkeypatch.setattr(tuning, "times_of", times_of)
        parts = ("--draft", pair / "draft", "--gate", gate)
        return run("tune", pair / "target", tmp_path / "prompts.txt", *parts, *options)

    return call


def loose(names):
    return [name for name in names if name.startswith("autojudge")]


def test_the_winner_is_kept_and_decoding_follows_it(tune, run, pair, gate):
    status, out, _ = tune("--budget", 0.01)
    assert status == 0 and "2.00 [2.00, 2.00] times as fast" in out
    kept = read_certificate(gate / "tuned")
    assert [one.settings for one in kept.points] == [{"risk": 0.0}] and kept.headline_budget == 0.01
    assert json.loads((gate / "tuned/speed.json").read_text())["to_strict"]["mean"] == 2.0
    asked = (pair / "target", "Tom has", "--draft", pair / "draft", "--max-new-tokens", 40)
    tuned = run("generate", *asked, "--gate", gate)
    assert (
        tuned[0] == 0 and ", 0 loose" in tuned[2]
    )  # risk 0 accepts nothing, although 1.0 is the headline's
    status, _, said = run("generate", *asked, "--gate", gate, "--budget", 0.03)
    assert status == 0 and " loose" in said and ", 0 loose" not in said


def test_nothing_is_saved_where_nothing_beats_strict(tune, gate):
    tune()
    assert (gate / "tuned").exists()
    status, out, _ = tune(strict=0.9)
    assert status == 0 and "Nothing certified beats strict decoding here" in out
    assert not (gate / "tuned").exists()


def test_only_settings_within_the_budget_take_part(tune):
    names = json.loads(tune("--budget", 0.01, "--json")[1])["screened"]
    assert loose(names) == ["autojudge risk 0.0, model K=4"]
    names = json.loads(tune("--json")[1])["screened"]
    assert "autojudge risk 1.0, model K=4" in names and "strict lookup K=8" in names


def test_a_score_that_decoding_would_not_follow_is_left_out(tune, gate):
    """Beside a gate only the task's own score counts, so that a choice by another one would run
    unasked.
    """
    replace(read_certificate(gate), score="logprob").save(gate)
    status, out, err = tune("--json")
    assert status == 0 and "no setting certified for a budget" in err
    assert not loose(json.loads(out)["screened"])


def test_strict_decoding_is_timed_with_the_certified_drafter(tune, gate):
    replace(read_certificate(gate), drafter="suffix").save(gate)
    status, out, err = tune("--json")
    assert status == 0 and "left out" not in err
    names = json.loads(out)["screened"]
    assert "strict suffix K=2" in names and "autojudge risk 1.0, suffix K=4" in names


def test_cheaper_drafts_are_what_is_timed(tune, tmp_path):
    measured = {"rule": "autojudge", "block": 4, "cost": 0.2, "verify": 1.0}
    Stopping(0.3, ((0.0, 0.1), (1.0, 0.9)), measured=measured).save(tmp_path / "stop.json")
    status, out, err = tune("--json", "--stop-drafting", tmp_path / "stop.json")
    assert (
        status == 0 and "left out" in err and "drafts end by another" in err
    )  # it was certified with whole drafts
    assert not loose(json.loads(out)["screened"])
    assert "strict model K=4" in json.loads(out)["screened"]


def test_plain_transformers_can_run_what_was_chosen(tune, gate):
    write_code(gate)
    assert not (gate / "custom_generate/trees_drafter.py").exists()
    replace(read_certificate(gate), drafter="tree").save(gate)
    tune()
    assert read_certificate(gate / "tuned").drafter == "tree"
    assert (gate / "custom_generate/trees_drafter.py").exists()


def test_what_tuning_decides_cannot_be_asked_for(tune, run, pair):
    assert "--rule is decided by tuning itself" in tune("--rule", "fly")[2]
    assert (
        "--block is decided" in tune("--block", 0)[2]
        and "--guard is decided" in tune("--guard", "loop")[2]
    )
    assert "Name the folder with --gate" in run("tune", pair / "target", "prompts.txt")[2]


@pytest.mark.parametrize(
    "said", [{"rule": "fly"}, {"budget": 0.05}, {"block": 2}, {"settings": {"risk": 0.1}}]
)
def test_who_says_what_runs_is_not_overruled(tune, gate, said):
    tune()
    assert tuned_certificate(DecodeOptions(gate=str(gate))) == read_certificate(gate / "tuned")
    assert tuned_certificate(DecodeOptions(gate=str(gate), **said)) is None


def test_what_was_not_measured_leaves_the_choice_aside(tune, run, pair, gate, tmp_path):
    tune()
    Stopping(0.4).save(tmp_path / "stop.json")
    asked = (
        pair / "target",
        "Tom has",
        "--draft",
        pair / "draft",
        "--gate",
        gate,
        "--max-new-tokens",
        4,
    )
    with pytest.warns(UserWarning, match="chose is left aside.*the guards are.*Tune again"):
        assert run("generate", *asked, "--guard", "loop")[0] == 0
    with pytest.warns(UserWarning, match="chose is left aside.*drafts end by another policy"):
        assert run("generate", *asked, "--stop-drafting", tmp_path / "stop.json")[0] == 0
    with pytest.warns(
        UserWarning, match="No certificate covers these requests"
    ):  # the gate's own one decides then
        assert run("generate", *asked, "--guard", "loop", "--temperature", "0.7")[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert run("generate", *asked)[0] == 0


def test_a_choice_among_another_certificate_is_left_aside(tune, gate):
    tune()
    kept = read_certificate(gate)
    replace(kept, points=(replace(kept.points[0], settings={"risk": 0.001}),)).save(gate)
    with pytest.warns(
        UserWarning, match="had another certificate, and is left aside. Run `gistgate tune` again"
    ):
        assert tuned_certificate(DecodeOptions(gate=str(gate))) is None
    (gate / "certificate.json").unlink()
    with pytest.warns(UserWarning, match="left aside"):
        assert tuned_certificate(DecodeOptions(gate=str(gate))) is None


def test_a_preferred_certificate_refuses_sampled_requests_everywhere(tune, pair, gate):
    tune()
    target, draft = (
        LlamaForCausalLM.from_pretrained(pair / name).eval() for name in ("target", "draft")
    )
    asked = {
        "max_new_tokens": 4,
        "input_ids": torch.tensor([[5, 6, 7]]),
        "do_sample": True,
        "temperature": 1.5,
    }
    with pytest.raises(UserError, match="the temperature is 1.5"):
        generate(target, draft, str(gate), **asked)
    assert generate(target, draft, str(gate), **{**asked, "do_sample": False}).shape == (1, 7)
    from gistgate.lm_eval.model import GatedLM

    names = {
        "pretrained": str(pair / "target"),
        "draft": str(pair / "draft"),
        "device": "cpu",
        "dtype": "float32",
    }
    lm = GatedLM(**names, gate=str(gate))
    assert lm.coverage.is_named and lm.coverage.certificate.rule == "autojudge"
