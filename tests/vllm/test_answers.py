"""The stages reference, calibrate and evaluate on vLLM: its strict answers are the library's, and a
certificate names the engine that made its answers.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gistgate.core.files import read_json, read_json_lines
from pipeline.paths import reference_of
from tests.pipeline.parameters import content
from tests.tiny import write_task

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
BLOCK = 4
METHODS = {
    "exact": {"rule": "exact"},
    "prob-ratio": {"rule": "prob-ratio", "knob": "r", "grid": [0.9, 0.3]},
    "autojudge": {"rule": "autojudge", "after": "gate", "knob": "risk", "grid": [0.3, 0.6]},
}


def run(*command: str, fails: bool = False) -> str:
    """What a stage prints, in a process of its own."""
    settings = {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(Path("cache").resolve()),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert bool(done.returncode) == fails, done.stderr[-3000:]
    return done.stderr if fails else done.stdout


def write_params(engine: str) -> None:
    """The parameters of the project."""
    values = content(
        pair="tiny",
        task="sums",
        documents="data",
        prompts={"train": 4, "development": 6, "calibration": 8, "guard": 2, "test": 6},
        decoding={"block": BLOCK, "batch_size": 4, "workers": 1, "max_new_tokens": 24},
        engine={
            "answers": engine,
            "arguments": {"enforce_eager": True, "max_model_len": 256},
        },
        methods=METHODS,
        calibrate={"budgets": [0.9]},
        headline_budget=0.9,
    )
    Path("params.yaml").write_text(yaml.safe_dump(values))


def ids_of(split: str) -> list[list[int]]:
    """The strict answers of a split."""
    return [row["ids"] for row in read_json_lines(reference_of(split))]


@pytest.fixture
def project(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the tiny pair with its prompts, and the library's own strict answers."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write_task(tmp_path / "data", limit=24)
    Path("models/pairs").mkdir(parents=True)
    pair = {
        role: {"model": str(place / role), "dtype": "float32", "device": "cpu"}
        for role in ("target", "draft")
    }
    Path("models/pairs/tiny.yaml").write_text(yaml.safe_dump(pair))
    Path("gate").symlink_to(place / "gate")
    write_params("own")
    run("pipeline.stages.prompts")
    run("pipeline.stages.reference")
    return tmp_path


def evaluated(name: str) -> tuple[dict[str, Any], list[str]]:
    """Summary and texts of a method on the test prompts."""
    folder = Path("reports/evaluation") / name
    samples = read_json_lines(folder / "samples.jsonl")
    return read_json(folder / "summary.json"), [sample["text"] for sample in samples]


def test_the_pipeline_runs_on_vllm(project: Path) -> None:
    own = {split: ids_of(split) for split in ("calibration", "development")}
    write_params("vllm")
    refusal = run("pipeline.stages.calibrate", "prob-ratio", fails=True)
    assert "was made with other weights, another tokenizer or engine" in refusal
    run("pipeline.stages.reference")
    assert {split: ids_of(split) for split in own} == own
    rows = read_json_lines(reference_of("calibration"))
    for row in rows:
        counts = row["statistics"]
        written = counts["strict"] + counts["own"] + counts["carried"]
        assert written == len(row["ids"])
        assert counts["loose"] == 0
    assert sum(row["statistics"]["strict"] for row in rows) > 0

    texts = {}
    for name in ("plain", "exact"):
        run("pipeline.stages.evaluate", name)
        summary, texts[name] = evaluated(name)
    assert texts["plain"] == texts["exact"]

    for name in ("prob-ratio", "autojudge"):
        run("pipeline.stages.calibrate", name)
        report = read_json(Path(f"reports/calibration/{name}.json"))
        scope = report["proof"]["scope"]
        assert scope["engine"].startswith("vllm 0.")
        assert scope["engine_arguments"]["max_model_len"] == 256
        assert (scope["block"], scope["target"]["dtype"]) == (BLOCK, "float32")
        assert report["budgets"]["0.9"]["certified"]
        assert report["settings"][-1]["statistics"]["loose"] > 0
        run("pipeline.stages.evaluate", name)
        summary, texts[name] = evaluated(name)
        assert summary["certified"] and summary["statistics"]["loose"] > 0
        assert 1 < summary["mean_accepted_length"] <= BLOCK + 1
    assert texts["prob-ratio"] != texts["exact"]

    write_params("own")
    refusal = run("pipeline.stages.evaluate", "prob-ratio", fails=True)
    assert "certificate was made with another engine, engine_arguments" in refusal
