"""The stages prompts and evaluate from end to end, on a tiny pair: certified settings run, others run strictly."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.core.batches import PromptCache
from gistgate.core.files import read_json, read_json_lines, write_json, write_json_lines
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import find_task
from pipeline.decode import operating_point
from pipeline.outcomes import scope_of
from pipeline.params import parse_params
from pipeline.stages import evaluate, prompts
from tests.tiny import byte_tokenizer, tiny_pair, write_task

REPORTS = Path("reports/evaluation")
PARAMS: dict[str, Any] = {
    "pair": "tiny",
    "task": "sums",
    "prompts": {"train": 4, "development": 4, "calibration": 4, "guard": 2, "test": 5},
    "decoding": {"block": 4, "batch_size": 3, "workers": 1},
    "methods": {
        "free": {
            "exact": {"rule": "exact"},
            "fly": {"rule": "fly", "fixed": {"window": 6}, "knob": "theta", "grid": [1.0, 0.1]},
            "prob": {"rule": "prob", "knob": "r", "grid": [0.1, 0.001]},
            "random": {"rule": "random", "knob": "rate", "grid": [0.1, 1.0], "block": 3},
        }
    },
}


def calibrated(name: str, knob: float | None, **fixed: Any) -> None:
    budget = {"certified": knob is not None, "knob": knob, "fixed": None if knob is None else fixed, "bound": 0.01}
    report: dict[str, Any] = {"budgets": {"0.03": budget}}
    if Path("data/prompts").exists():
        evaluation = evaluate.Evaluation(parse_params(PARAMS))
        report["proof"] = {"scope": scope_of(evaluation.params, name, evaluation.pair, evaluation.task, None)}
    write_json(Path(f"reports/calibration/free/{name}.json"), report)


def start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    evaluate.main(name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_task(tmp_path / "data")
    pair, tokenizer = tiny_pair(), byte_tokenizer()
    sources = {}
    for role, model in zip(("target", "draft"), pair, strict=True):
        folder = tmp_path / "models" / "tiny" / role
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        sources[role] = {"model": str(folder), "dtype": "float32", "device": "cpu"}
    (tmp_path / "models/pairs").mkdir()
    (tmp_path / "models/pairs/tiny.yaml").write_text(yaml.safe_dump(sources))
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    prompts.main()
    calibrated("fly", 0.1, window=2, strict_window=False)
    calibrated("prob", None)
    calibrated("random", 1.0)
    return tmp_path


@pytest.mark.slow
def test_all_methods_in_one_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(monkeypatch, "all")
    summaries = {
        name: read_json(REPORTS / name / "summary.json") for name in ("plain", "exact", "fly", "prob", "random")
    }
    samples = {name: read_json_lines(REPORTS / name / "samples.jsonl") for name in summaries}

    # The certified setting runs; without one the method runs strictly and says so.
    assert summaries["fly"]["settings"] == {"window": 2, "strict_window": False, "theta": 0.1}
    assert (summaries["prob"]["rule"], summaries["prob"]["certified"], summaries["prob"]["knob"]) == (
        "exact",
        False,
        None,
    )
    assert (summaries["random"]["knob"], summaries["random"]["certified"], summaries["random"]["block"]) == (
        1.0,
        True,
        3,
    )
    assert summaries["plain"]["mean_accepted_length"] == 1
    assert summaries["random"]["loose_per_100"] > 0

    # Strict decoding changes nothing, and samples pair up by document.
    texts = {name: [(sample["id"], sample["text"]) for sample in rows] for name, rows in samples.items()}
    assert texts["plain"] == texts["exact"] == texts["prob"] != texts["random"]
    assert [sample["id"] for sample in samples["fly"]] == [f"test-{index}" for index in range(5)]
    assert summaries["plain"]["cut"] == 5 and all(row["cut"] for row in samples["plain"])  # random weights never stop
    assert all(summary["n"] == 5 for summary in summaries.values())
    statistics = summaries["exact"]["statistics"]
    assert statistics["forwards"] == sum(sample["statistics"]["forwards"] for sample in samples["exact"])
    assert "seconds" not in statistics

    # Slots are those of what was decoded for a method; prob takes over the verdict on strict decoding.
    plain = summaries["plain"]
    assert plain["slots_used"] == plain["statistics"]["forwards"] < plain["slots"]  # five prompts in batches of three
    assert 0 < plain["idle_share_of_slots"] < 1 and summaries["exact"]["slots_used"] == statistics["forwards"]
    assert (summaries["prob"]["slots"], summaries["prob"]["idle_share_of_slots"]) == (0, None)

    # Started again, everything waits in the scratch folder and the bytes are the same.
    before = {path: path.read_bytes() for path in REPORTS.rglob("*.json*")}
    monkeypatch.setattr(evaluate, "Evaluation", None)
    start(monkeypatch, "all")
    assert {path: path.read_bytes() for path in REPORTS.rglob("*.json*")} == before


@pytest.mark.slow
def test_only_what_changed_runs_again_and_to_the_same_bytes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = evaluate.Evaluation.evaluate
    monkeypatch.setattr(
        evaluate.Evaluation, "evaluate", lambda self, point, part: (ran.append(point.method), run(self, point, part))
    )
    start(monkeypatch, "fly")
    first = (REPORTS / "fly/samples.jsonl").read_bytes()
    start(monkeypatch, "fly")
    assert ran == ["fly"], "nothing has changed, so that nothing runs"
    calibrated("fly", 1.0)
    start(monkeypatch, "fly")
    assert ran == ["fly"] * 2
    calibrated("fly", 0.1, window=2, strict_window=False)
    for folder in Path(".scratch").iterdir():
        (folder / "samples.jsonl").unlink()
        (folder / "summary.json").unlink()
        folder.rmdir()
    start(monkeypatch, "fly")
    assert ran == ["fly"] * 3
    assert (REPORTS / "fly/samples.jsonl").read_bytes() == first


@pytest.mark.slow
def test_prompts_that_lm_eval_does_not_serve_are_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = read_json_lines(Path("data/prompts/test.jsonl"))
    lines[1]["ids"] = lines[1]["ids"][:-1]
    write_json_lines("data/prompts/test.jsonl", lines)
    with pytest.raises(UserError, match="out of date"):
        start(monkeypatch, "plain")
    assert not (REPORTS / "plain").exists()


@pytest.mark.slow
def test_a_certificate_for_other_prompts_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = read_json_lines(Path("data/prompts/calibration.jsonl"))
    write_json_lines("data/prompts/calibration.jsonl", lines[1:])
    with pytest.raises(UserError, match="Method 'fly': The certificate does not hold here, because of another prompts"):
        start(monkeypatch, "fly")


def test_an_operating_point_needs_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    params = parse_params(PARAMS)
    with pytest.raises(UserError, match=r"fly\.json is missing"):
        operating_point(params, "fly")
    calibrated("fly", 0.1)
    assert operating_point(params, "fly").knob == 0.1
    with pytest.raises(UserError, match=r"says nothing about the budget 0\.02"):
        operating_point(params, "fly", budget=0.02)
    with pytest.raises(UserError, match="Did you mean 'prob'"):
        operating_point(params, "probb")


@pytest.mark.parametrize("name", ["gsm8k", "wordproblems"])
def test_the_projects_tasks_load_from_a_folder(tmp_path: Path, name: str) -> None:
    write_task(tmp_path)
    task = find_task(name, data=str(tmp_path), folder=Path(__file__).parents[3] / "data/tasks")
    assert task.has_training_docs()
    assert "1000 + 1?" in task.doc_to_text(task.test_docs()[0])


@pytest.mark.slow
def test_strict_answers_are_decoded_once_for_all_that_give_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly strict setting takes over the answers that strict decoding gives, and its own are those it has alone."""
    calibrated("prob", 0.1)
    decoded: list[tuple[str, int]] = []
    run = PromptCache.decode_all

    def counting(self: PromptCache, decoder: Any, prompts: Any, **request: Any) -> Any:
        decoded.append((decoder.rule.id, len(prompts)))
        return run(self, decoder, prompts, **request)

    monkeypatch.setattr(PromptCache, "decode_all", counting)
    start(monkeypatch, "all")
    found = {name: read_json_lines(REPORTS / name / "samples.jsonl") for name in ("prob", "fly")}
    together = dict(decoded)
    shutil.rmtree(".scratch")
    decoded.clear()
    for name in found:
        start(monkeypatch, name)
        assert read_json_lines(REPORTS / name / "samples.jsonl") == found[name]
    alone = dict(decoded)
    assert alone == {"prob": 5, "fly": 5}
    assert together["exact"] == 5 and sum(together.get(name, 0) for name in alone) < 10
