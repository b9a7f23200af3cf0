"""`gistgate calibrate` from a task to certificate.json on a tiny pair, without the pipeline."""

import os
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.certificates.bounds import BETTING, PLUG_IN
from gistgate.certificates.judged import LOCAL, PUBLISHED, Look, hash_of, record
from gistgate.cli import options as extras
from gistgate.cli.calibrate import Options
from gistgate.cli.main import app
from gistgate.cli.show import proved
from gistgate.cli.tools import inspect
from gistgate.core.certificate import read_certificate
from gistgate.core.files import write_json_lines
from gistgate.core.gate import Gate, GateConfig
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.lm_eval import calibrate
from gistgate.lm_eval import task as task_files
from gistgate.lm_eval.calibrate import (
    certify,
    check_options,
    drafter_of,
    make_scorer,
    prompts_of,
    recorded,
    spec_of,
    usual_drafter,
    warn_of_little_to_lose,
)
from gistgate.lm_eval.prompts import hashes_of
from gistgate.lm_eval.task import load_task
from tests.tiny import byte_tokenizer, tiny_pair, write_task


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a tiny target and draft."""
    place = tmp_path_factory.mktemp("pair")
    for name, model in zip(("target", "draft"), tiny_pair(), strict=True):
        model.save_pretrained(place / name)
        byte_tokenizer().save_pretrained(place / name)
    return place / "target", place / "draft"


def test_the_command_writes_a_certificate_that_fits_what_was_calibrated(tmp_path, monkeypatch, folders, capsys):
    monkeypatch.chdir(tmp_path)
    tasks = write_task(tmp_path, num_train=90)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, tasks, False))
    target, draft = folders
    options = Options(
        task="sums", budget=0.2, rule="prob-ratio", target=str(target), draft=str(draft), prompts=60, development=20,
        out=tmp_path / "proof", batch_size=16,
    )  # fmt: skip
    kept, path = certify(options)
    assert "A budget of 20.00%" in capsys.readouterr().out
    assert path == tmp_path / "proof/certificate.json" and read_certificate(path) == kept
    found = kept.operating_point(0.2)
    assert (kept.rule, found.n, kept.score) == ("prob-ratio", 60, "task")
    assert found.bound <= 0.2
    assert "certificate rule prob-ratio" in proved(kept)
    model = LlamaForCausalLM.from_pretrained(target)
    assert kept.mismatch(target=model) is None
    model.model.norm.weight.data += 1
    assert "because of another target" in (kept.mismatch(target=model) or "")


@pytest.mark.parametrize("stop, score, kind", [("clear", "task", BETTING), ("lost", "logprob", PLUG_IN)])
def test_it_lies_beside_its_gate_and_inspect_shows_it(tmp_path, monkeypatch, folders, capsys, stop, score, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path, num_train=90), False))
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    partners = identify_model(target), identify_model(draft), identify_tokenizer(byte_tokenizer())
    Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *partners)).save("gate")
    certify(
        Options(
            task="sums", budget=0.4, gate="gate", target=str(folders[0]), draft=str(folders[1]), prompts=60,
            development=20, batch_size=16, stop=stop, score=score,
        )
    )  # fmt: skip
    kept = read_certificate(Path("gate"))
    assert kept is not None and (kept.rule, kept.score) == ("autojudge", score)
    found = kept.operating_point()
    assert found.bound_kind == kind and found.loss <= found.bound <= 0.4 and len(kept.sequence) >= 1
    capsys.readouterr()
    inspect(Path("gate"))
    shown = capsys.readouterr().out
    assert "certificate rule autojudge" in shown and "risk " in shown and kind in shown
    assert "budget 40 %" in shown and "within the budget with 95 % confidence" in shown
    assert f"bound {100 * found.bound:.2f} {'points' if score == 'task' else '%'}" in shown


def test_the_knob_is_not_set_by_hand(tmp_path, monkeypatch, folders):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path, num_train=90), False))
    options = Options(
        task="sums", budget=0.2, rule="prob-ratio", target=str(folders[0]), draft=str(folders[1]), settings=("r=0.4",),
        out=tmp_path / "proof", development=20,
    )  # fmt: skip
    with pytest.raises(UserError, match="Calibration chooses r itself"):
        certify(options)


SPLITS = ("train", "development", "calibration", "guard", "test")


def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch, gate: Any = None, **models: Any) -> set[str]:
    """The questions that the command would decode: 90 documents are there."""
    monkeypatch.chdir(folder)
    tasks = write_task(folder, num_train=90)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, tasks, False))
    options = Options(task="sums", budget=0.2, target="t", out=folder, prompts=10, development=20)
    usual = {
        "tokenizer": byte_tokenizer(),
        "target": SimpleNamespace(config=LlamaConfig()),
        "draft": None,
        "gate": gate,
    }
    models = SimpleNamespace(**{**usual, "gate": gate, **models})
    found = prompts_of(options, models, load_task(spec_of(options, None)), True)
    return {prompt["doc"]["question"] for prompts in found.values() for prompt in prompts}


def test_documents_of_another_task_do_not_matter(tmp_path, monkeypatch):
    (tmp_path / "data/prompts").mkdir(parents=True)
    write_json_lines(tmp_path / "data/prompts/train.jsonl", [{"doc": {"prompt": "Write f."}}, {"context": "Hello"}])
    assert chosen(tmp_path, monkeypatch)


def test_a_judge_that_nobody_asks_is_refused():
    options = Options(task="sums", gate="g", judge="some/model")
    with pytest.raises(UserError, match="only --score judge asks"):
        make_scorer(options, None, None)


@pytest.mark.parametrize(
    ("certified", "draft", "drafter"),
    [
        (None, "d", "model"),
        (None, None, "lookup"),
        ("suffix", None, "suffix"),
        ("model", None, "lookup"),
        ("tree", None, "lookup"),
    ],
)
def test_a_gate_drafts_as_it_was_certified(certified, draft, drafter):
    known = certified and SimpleNamespace(drafter=certified)
    assert usual_drafter(known, draft) == drafter


@pytest.mark.parametrize(("right", "warns"), [(0, True), (1, True), (8, False)])
def test_a_target_that_solves_next_to_nothing_is_told(right, warns):
    """Of 20 development prompts."""
    scorer = SimpleNamespace(score=lambda prompt, ids: float(prompt < right))
    outcomes = SimpleNamespace(prompts={"development": range(20)}, strict=lambda prompts, start: [[]] * 20)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_little_to_lose(0.05, scorer, outcomes)
    assert ["promises nothing" in str(one.message) for one in told] == [True] * warns


def test_planned_looks_take_more_prompts(tmp_path, monkeypatch):
    """Each look is tested at a higher confidence."""
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path, num_train=900), False))
    monkeypatch.chdir(tmp_path)
    models = SimpleNamespace(
        tokenizer=byte_tokenizer(), target=SimpleNamespace(config=LlamaConfig()), draft=None, gate=None
    )

    def count(looks):
        options = Options(task="sums", budget=0.2, target="t", out=tmp_path, development=20, looks=looks)
        return len(prompts_of(options, models, load_task(spec_of(options, None)), True)["calibration"])

    assert count(20) > count(1)


@pytest.mark.parametrize("split", SPLITS)
def test_no_prompt_of_a_finished_run_is_judged(tmp_path, monkeypatch, split):
    """A gate that the pipeline refused must not be looked at on the same prompts again."""
    used = [{"doc": {"question": f"{number} + 1?"}} for number in range(60)]
    (tmp_path / "data/prompts").mkdir(parents=True)
    write_json_lines(tmp_path / f"data/prompts/{split}.jsonl", used)
    assert not chosen(tmp_path, monkeypatch) & {prompt["doc"]["question"] for prompt in used}


def test_no_problem_that_the_gate_was_trained_on_is_judged(tmp_path, monkeypatch):
    """Wherever its run lies, and however prompts were built there; a gate that does not say its problems is told."""
    gate = SimpleNamespace(config=SimpleNamespace(problems=hashes_of(f"q {number} 1 a" for number in range(60))))
    found = chosen(tmp_path, monkeypatch, gate)
    assert found and not found & {f"{number} + 1?" for number in range(60)}
    gate.config.problems = ""
    with pytest.warns(UserWarning, match="does not say which problems it was trained on"):
        chosen(tmp_path, monkeypatch, gate)


@pytest.mark.parametrize("ledger", [LOCAL, PUBLISHED])
def test_no_prompt_that_a_pipeline_judged_in_an_earlier_draw_is_judged(tmp_path, monkeypatch, ledger):
    hashes = [hash_of(byte_tokenizer().encode(f"Q: {number} + 1?\nA:")) for number in range(60)]
    questions = {f"{number} + 1?" for number in range(60)}
    for choice, is_free in (("", True), ("of the pipeline", False)):
        monkeypatch.chdir(tmp_path)
        record(Look("claim", hashes, 0.05, 0.05, choice, tested="sequence"))
        (tmp_path / ledger).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / LOCAL).rename(tmp_path / ledger)
        assert bool(chosen(tmp_path, monkeypatch) & questions) is is_free
        (tmp_path / ledger).unlink()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (True, "Be short.")),
        ({"system": "Write a program."}, (True, "Write a program.")),
        ({"system": ""}, (True, None)),
        ({"chat": False}, (False, None)),
    ],
)
def test_prompts_are_built_as_the_user_says_else_as_the_gate_was_trained(tmp_path, monkeypatch, said, expected):
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path), False))
    trained = {"num_fewshot": 0, "chat_template": True, "system": "Be short."}
    gate = SimpleNamespace(config=SimpleNamespace(prompting=trained, labels={}))
    found = load_task(spec_of(Options(task="sums", gate="g", **said), gate)).prompting
    assert (found.chat_template, found.system) == expected
    assert not load_task(spec_of(Options(task="sums", gate="g"), None)).prompting.chat_template


def test_solved_examples_are_the_gates_or_those_of_the_user_or_of_the_task(tmp_path, monkeypatch):
    monkeypatch.setattr(
        task_files.find_task,
        "__defaults__",
        (None, write_task(tmp_path, output_type="num_fewshot: 2\noutput_type"), False),
    )
    trained = SimpleNamespace(config=SimpleNamespace(prompting={"num_fewshot": 1}, labels={}))

    def examples(gate, **said):
        return load_task(spec_of(Options(task="sums", gate="g", **said), gate)).harness.config.num_fewshot

    assert (examples(None), examples(trained), examples(trained, num_fewshot=0)) == (2, 1, 0)


def test_a_system_text_without_a_chat_is_refused(tmp_path, monkeypatch):
    """No request could ever match such a certificate."""
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, write_task(tmp_path), False))
    with pytest.raises(UserError, match="Add --chat, or leave --system out"):
        load_task(spec_of(Options(task="sums", gate="g", system="Be short."), None))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({}, "Without --gate"),
        ({"gate": "x", "budget": 0.0}, "cannot be certified"),
        ({"gate": "x", "stop": "earlier"}, "no way to stop called 'earlier'"),
        ({"gate": "x", "looks": 600}, "Lower the confidence or the looks"),
    ],
)
def test_options_that_cannot_be_are_refused(said, message):
    with pytest.raises(UserError, match=message):
        check_options(Options(task="sums", **said))


def test_without_its_libraries_the_command_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=missing))
    done = CliRunner().invoke(app, ["calibrate", "--task", "sums"])
    assert re.search(r"needs 'scipy'.*'\.\[calibrate\]'", str(done.exception))


@pytest.mark.parametrize("option", [["--strict-model", "a"], ["--concurrent", "2"]])
def test_options_of_servers_are_refused_without_servers(option):
    refused = CliRunner().invoke(app, ["calibrate", "--task", "sums", *option])
    assert isinstance(refused.exception, UserError) and f"{option[0]} means nothing unless" in str(refused.exception)


@pytest.mark.parametrize(("target", "draft", "expected"), [(4096, 2048, 2048), (512, 2048, 512), (4096, None, 4096)])
def test_prompts_have_to_fit_the_draft_too(tmp_path, monkeypatch, target, draft, expected) -> None:
    """A document that the draft cannot read would end the calibration when its chunk is decoded."""
    lengths: list[int] = []
    maker = calibrate.PromptMaker
    monkeypatch.setattr(calibrate, "PromptMaker", lambda *given: lengths.append(given[2]) or maker(*given))

    def model(context: int) -> Any:
        return SimpleNamespace(config=LlamaConfig(max_position_embeddings=context))

    chosen(tmp_path, monkeypatch, target=model(target), draft=None if draft is None else model(draft))
    assert lengths == [expected]


@pytest.mark.parametrize("drafter", ["corpus", "sen", "sen-tree"])
def test_drafters_whose_data_cannot_be_named_are_refused(drafter: str) -> None:
    nothing: Any = None
    method: Any = SimpleNamespace(drafter=drafter)
    with pytest.raises(UserError, match=f"The drafter '{drafter}' reads data that this command does not take"):
        drafter_of(nothing, nothing, method)


def test_a_model_that_the_gate_names_and_nobody_finds_has_to_be_named() -> None:
    """A name of the user is taken at its word, and fails with its own sentence."""
    remedy = r"It is gone\. The gate records this name.*Name the model with --draft"
    with pytest.raises(UserError, match=remedy), recorded("draft", "models/draft"):
        raise UserError("It is gone.")
    with pytest.raises(UserError, match=r"^It is gone\.$"), recorded("draft", None):
        raise UserError("It is gone.")
