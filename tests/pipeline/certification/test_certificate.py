"""From a budget to a certificate.json on a tiny pair and a made-up task."""

import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from gistgate.build.decoder import build_decoder
from gistgate.certificates.bernstein import PLUG_IN
from gistgate.certificates.betting import BETTING
from gistgate.certificates.bounds import EXACT
from gistgate.certificates.certificate import read_proof
from gistgate.certificates.fixed_sequence import needed_beyond
from gistgate.certificates.planning import spread_out
from gistgate.certificates.scores import CLIP, LogProbability, PairwiseJudge
from gistgate.certificates.search import Choice, Setting
from gistgate.certificates.sequence import try_setting
from gistgate.cli import main as cli
from gistgate.errors import UserError
from gistgate.files import read_json
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer, model_scope
from gistgate.integrations.lm_eval import task_files
from gistgate.request.statistics import Statistics
from gistgate.rules import make_rule
from pipeline.certification.certificate import (
    Finding,
    Request,
    check_possible,
    default_n,
    plan_sentence,
    scope_of_trial,
)
from pipeline.certification.command import Options, certify
from pipeline.certification.trial import Decoded, Ground, Trial
from pipeline.common.resume import fingerprint
from pipeline.common.scope import scope_of
from pipeline.pairs.pair import Pair
from pipeline.params import CertifyParams, MethodParams, Params, PromptingParams
from pipeline.studies.certify import certify as stage
from pipeline.studies.retrieval.drafters import files_behind
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


@pytest.mark.parametrize(
    "ternary, stop, bound, least",
    [(True, "lost", EXACT, 299), (True, "clear", EXACT, 368), (False, "lost", PLUG_IN, 805)],
)
def test_what_is_possible_is_what_the_deciding_bound_can_certify(ternary, stop, bound, least):
    def kept(n: int) -> bool:
        chunks = [Decoded(np.zeros(n))]
        return try_setting(chunks, [0.01], 0.95, stop, ternary).within[0]

    check_possible(0.01, 0.95, least, ternary, stop)
    assert kept(least) and not kept(least - 1)
    assert try_setting([Decoded(np.zeros(least))], [0.01], 0.95, stop, ternary).bounds[0].kind == bound
    with pytest.raises(UserError, match=f"that takes {least}"):
        check_possible(0.01, 0.95, least - 1, ternary, stop)


def test_a_watch_that_may_certify_counts_among_what_is_possible():
    check_possible(0.01, 0.95, 608, False, "clear")
    assert try_setting([Decoded(np.zeros(608))], [0.01], 0.95, "clear", False).watched == ("within",)
    with pytest.raises(UserError, match="that takes 608"):
        check_possible(0.01, 0.95, 607, False, "clear")


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
    kept = read_proof(Path(tmp_path / "proof"))
    assert kept is not None
    found = kept.operating_point(0.2)
    assert (kept.rule, found.n, kept.score) == ("prob-ratio", 60, "task")
    assert found.bound <= 0.2
    assert "certificate rule prob-ratio" in text
    model = LlamaForCausalLM.from_pretrained(target)
    assert kept.mismatch(target=model) is None
    model.model.norm.weight.data += 1
    assert "because of another target" in (kept.mismatch(target=model) or "")


@pytest.mark.parametrize("stop, score, kind", [("clear", "task", BETTING), ("lost", "logprob", PLUG_IN)])
def test_it_lies_beside_its_gate_and_inspect_shows_it(tmp_path, monkeypatch, folders, capsys, stop, score, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path, num_train=90)))
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    partners = identify_model(target), identify_model(draft), identify_tokenizer(byte_tokenizer())
    Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *partners)).save("gate")
    certify(
        Options(
            task="sums", budget=0.4, gate="gate", target=str(folders[0]), draft=str(folders[1]), prompts=60,
            development=20, batch_size=16, stop=stop, score=score,
        )
    )  # fmt: skip
    kept = read_proof(Path("gate"))
    assert kept is not None and (kept.rule, kept.score) == ("autojudge", score)
    found = kept.operating_point()
    assert found.bound_kind == kind and found.loss <= found.bound <= 0.4 and len(kept.sequence) >= 1
    capsys.readouterr()
    cli.inspect(Path("gate"))
    shown = capsys.readouterr().out
    assert "certificate rule autojudge" in shown and "risk " in shown and kind in shown
    assert f"at most {100 * found.bound:.2f} {'points' if score == 'task' else '%'}" in shown


def finding(losses: int, n: int, stop: str = "planned") -> Finding:
    """A sequence of one setting that loses so many answers and gains none, spread over the prompts."""
    d = spread_out(losses, 0, n)
    tested = try_setting((Decoded(part) for part in np.array_split(d, 10)), [0.02], 0.95, stop)
    return Finding(Request((0.02,), n=n, stop=stop), Choice([Setting(0.1)], []), [tested])


@pytest.mark.parametrize(
    "found, sentence",
    [
        (finding(8, 500), r"500 prompts with a loss of 1\.60% .* bound it by 2\.87%; about \d+ prompts would do\."),
        (finding(15, 500), "more prompts would not help; take a larger budget"),
        (finding(400, 1000, "lost"), r"is lost at the strictest setting tested: 100 prompts .* leave no doubt"),
    ],
)
def test_a_refusal_says_what_was_seen_and_what_would_help(found, sentence):
    assert found.certified(0.02) is None
    assert re.search(sentence, found.refusal(0.02) or "")


def test_prompts_that_would_do_are_named_by_the_bound_that_refused():
    d = np.random.default_rng(0).uniform(-0.2, 0.2, 400)
    d -= d.mean()
    tested = try_setting([Decoded(d)], [0.01], 0.95, "lost", False)
    found = Finding(Request((0.01,), n=400), Choice([Setting(0.1)], []), [tested])
    assert tested.bounds[0].kind == PLUG_IN
    named = int(re.search(r"about (\d+) prompts", found.refusal(0.01) or "").group(1))
    assert 400 < named < needed_beyond(tested.bounds[0], 0.01)  # the fixed-n bound, which decides nothing, wants more
    assert try_setting([Decoded(np.resize(d, named))], [0.01], 0.95, "lost", False).within == (True,)
    assert try_setting([Decoded(np.resize(d, named - 20))], [0.01], 0.95, "lost", False).within == (False,)


def test_where_a_budget_is_kept_there_is_no_refusal():
    found = finding(0, 500)
    assert (found.certified(0.02), found.refusal(0.02)) == (0, None)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="Without --gate"):
        Options(task="sums")
    with pytest.raises(UserError, match="cannot be certified"):
        Options(task="sums", gate="x", budget=0.0)
    with pytest.raises(UserError, match="no way to stop called 'earlier'"):
        Options(task="sums", gate="x", stop="earlier")


MODELS = {"model": True, "tree": True, "cascade": True, "choice": True, "lookup": False, "sen": False}


def test_a_certificate_names_the_draft_of_every_drafter_that_has_one_and_what_others_know(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in [*files_behind("choice"), *files_behind("sen")]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("known")
    pair = Pair(*tiny_pair(), byte_tokenizer(), "tiny")
    params = Params(methods={name: MethodParams("fly", drafter=name, knob="theta", grid=(0.1,)) for name in MODELS})
    Path("data/prompts").mkdir(exist_ok=True)
    Path("data/prompts/calibration.jsonl").write_text("")
    task = SimpleNamespace(name="sums", metric="exact", stops=[], max_new_tokens=5)
    for name, has_model in MODELS.items():
        trial = Trial(Ground(pair, {"calibration": []}, None, 8), params.method(name), 4)
        made = scope_of_trial(trial, "task", params.prompting)
        assert (made["draft"] == model_scope(identify_model(pair.draft))) is has_model
        whole = scope_of(params, name, pair, task, None)
        assert (whole["draft"], whole["drafter_data"]) == (made["draft"], made.get("drafter_data"))
        assert (made.get("drafter_data") is not None) is (name in ("choice", "sen"))
        if name != "sen":
            continue
        files_behind(name)[0].write_text("something else")
        assert scope_of_trial(trial, "task", params.prompting)["drafter_data"] != made["drafter_data"]


def test_the_scope_of_the_model_drafter_is_what_it_was():
    """Certificates that were made before have these entries, and no other."""
    pair = Pair(*tiny_pair(), byte_tokenizer(), "tiny")
    trial = Trial(Ground(pair, {"calibration": [{"ids": [1]}]}, None, 8), MethodParams("fly"), 4)
    assert scope_of_trial(trial, "task", PromptingParams()) == {
        "target": model_scope(identify_model(pair.target)), "draft": model_scope(identify_model(pair.draft)),
        "tokenizer": identify_tokenizer(byte_tokenizer()).vocabulary, "gate": None, "task": "task",
        "prompts": fingerprint([[1]]), "prompting": asdict(PromptingParams()), "rule": "fly", "drafter": "model",
        "block": 4, "knob": None, "temperature": 0.0, "engine": "eager",
        "batching": {"rows": 8, "ragged": True}, "guards": [],
    }  # fmt: skip


def test_the_summary_compares_what_was_certified():
    def report(learned, tau, refusal=None):
        row = {
            "refusal": refusal, "mean_accepted_length": tau, "rounds": [[int(10 * tau), 10]] * 20, "settings": {},
            "block": 16, "n": 20, "loss": 0.0, "bound": 0.01, "harm": 0.0, "harm_bound": 0.1, "discordant": 0,
        }  # fmt: skip
        return {"learned": learned, "budgets": {"0.02": row}}

    both = {"gate": report(True, 8.0), "fly": report(False, 4.0), "sense": report(False, 5.0)}
    ratio = stage.compared(both, "0.02")["ratio"]
    assert (ratio["learned"], ratio["free"], ratio["value"]) == ("gate", "sense", 1.6)
    assert ratio["interval"] == pytest.approx([1.6, 1.6])
    refused = {"gate": report(True, 8.0, "no"), "fly": report(False, 4.0)}
    assert stage.compared(refused, "0.02")["ratio"] is None


def test_what_make_certify_certifies_decodes_by_its_own_file(tmp_path, monkeypatch, folders):
    monkeypatch.chdir(tmp_path)
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    pair, method = Pair(target, draft, byte_tokenizer(), "tiny"), MethodParams("prob-ratio", knob="r", grid=(0.5, 0.2))
    trial = Trial(Ground(pair, {"calibration": [{"ids": [1]}]}, SimpleNamespace(id="task"), 8), method, 5)
    statistics = [Statistics(own=1, forwards=1)] * 500
    tested = try_setting([Decoded(np.zeros(500), statistics)], [0.001, 0.02], 0.95, "lost")
    monkeypatch.setattr(stage, "find", lambda trial, request: Finding(request, Choice([Setting(0.5)], []), [tested]))
    params = Params(methods={"ratio": method}, certify=CertifyParams(budgets=(0.001, 0.02), prompts=5000))
    task = SimpleNamespace(name="sums", metric="exact", stops=[], max_new_tokens=5)
    for name, found in {"read_params": params, "trial_of": trial, "load_task": task, "item": "ratio"}.items():
        monkeypatch.setattr(stage, name, lambda *_, found=found: found)
    Path("reports/certify/ratio/0.5").mkdir(parents=True)  # of an earlier run
    stage.main()

    assert [folder.name for folder in Path("reports/certify/ratio").iterdir()] == ["0.02"]
    served = build_decoder(target, byte_tokenizer(), draft=str(folders[1]), certificate="reports/certify/ratio/0.02")
    assert (served.rule, served.block) == (make_rule("prob-ratio", r=0.5), 5)
    with pytest.raises(UserError, match="because of another draft"):
        build_decoder(target, byte_tokenizer(), draft=str(folders[0]), certificate="reports/certify/ratio/0.02")
    report = read_json("reports/certify/ratio.json")["budgets"]
    assert report["0.001"]["refusal"] and report["0.02"]["rounds"] == [[1, 1]] * 500


def test_without_the_pipeline_the_command_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"'scipy' is missing.*\[pipeline\]"):
        cli.pipeline_module("certification.command")
