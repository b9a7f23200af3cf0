"""Run every stage on tiny sizes in a temporary copy: own parameters, own DVC cache, own tracking store.

    python -m pipeline.smoke            prints each stage as it runs; nothing in the working tree changes
    python -m pipeline.smoke --table    the stages of the large table as well, as the tests do

The sizes prove that the stages fit together, not that the numbers mean anything: budgets are so wide that something is
certified.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
import yaml

from gistgate.core.utils import UserError
from gistgate.rules import RULES
from pipeline.paths import PARAMS, STUDIES
from pipeline.run import run

ROOT = Path(__file__).parents[1]
OUTPUTS = (
    "models/export/config.json",
    "models/heads/logistic/model.safetensors",
    "reports/benchmark.json",
    "reports/evaluation/plain/summary.json",
    "reports/frontier.csv",
    "reports/index.html",
    "reports/summary.json",
)
"""Files that a whole run leaves behind, among others."""
TABLE_OUTPUTS = ("reports/table/index.html", "reports/table/judgements.json", "reports/table/summary.json")
"""And those of the large table."""
CORE = ("dvc.yaml",)
GRAPHS = CORE
"""The core, and the large table."""
TINY: dict[str, Any] = {
    "headline_budget": 0.5,
    "world": {"kind": "neutral", "min_steps": 1, "max_steps": 2, "max_total": 50, "task_train": 300, "task_test": 80},
    "pair_training": {
        "target": {"hidden_size": 128, "layers": 2, "intermediate_size": 256, "documents": 3000, "steps": 120},
        "draft": {"hidden_size": 64, "layers": 1, "intermediate_size": 128, "documents": 1500, "steps": 60},
        "check_problems": 20,
        "min_target_accuracy": 0.0,
    },
    "prompts": {"train": 16, "development": 8, "calibration": 16, "guard": 80, "test": 8},
    "decoding": {"max_new_tokens": 64, "workers": 1},
    "collect": {"shard_prompts": 8, "strict_share": 1.0, "solved_only": False},
    "label": {"rollouts": 2, "audit": 4},
    "train": {"epochs": 2, "c": [0.01, 0.1], "folds": 2, "hidden": 8},
    "methods": {"free": {"prob": None, "prob-ratio": None, "random": None, "fly": {"variants": [{"window": 2}]}}},
    "calibrate": {"budgets": [0.3, 0.5], "settings": 2, "evaluations": 2},
    "benchmark": {"prompts": 1, "development": 1, "repeats": 1},
}
"""What differs from params.yaml; None takes a key away."""
TABLE = STUDIES / "table/params.yaml"
TINY_TABLE = {"skip": [name for name in RULES if name not in ("csd", "judge")]}
"""What differs from the large table's parameters."""
Changes = tuple[tuple[Path, dict[str, Any]], ...]
"""Files of parameters with what differs in them."""
SIZES: Changes = ((PARAMS, TINY), (TABLE, TINY_TABLE))


def main(table: Annotated[bool, typer.Option("--table", help="Run the large table as well.")] = False) -> None:
    with tempfile.TemporaryDirectory(prefix="gistgate-smoke-") as folder:
        started = perf_counter()
        copy_project(Path(folder))
        reproduce(Path(folder), GRAPHS if table else CORE)
        check_outputs(Path(folder), OUTPUTS + TABLE_OUTPUTS if table else OUTPUTS)
        print(f"All stages ran in {perf_counter() - started:.0f} s.")


def copy_project(folder: Path, root: Path = ROOT, changes: Changes = SIZES) -> None:
    """Copy what Git knows or would take in, with these changes of parameters, into a repository of its own.

    A second copy renews the sources and leaves alone what DVC keeps there.

    Raises:
        UserError: this is no Git repository, so nobody can say which files belong to the project.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        raise UserError("The project's files are listed by Git, and this is no Git repository. Clone it instead.")
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file() and Path(name).name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    for path, change in changes:
        params = merged(yaml.safe_load((root / path).read_text()), change)
        (folder / path).write_text(yaml.safe_dump(params, sort_keys=False))
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, block by block; None takes a key away."""
    result = {**base, **{key: value for key, value in changes.items() if not isinstance(value, dict)}}
    for key, value in changes.items():
        if isinstance(value, dict):
            result[key] = merged(base.get(key) or {}, value)
    return {key: value for key, value in result.items() if key not in changes or value is not None}


def environment(folder: Path) -> dict[str, str]:
    """Variables of a run in `folder`: this Python first on PATH, nothing shared with the working tree."""
    ours = ("DVC_", "MLFLOW_", "GISTGATE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }


def dvc(folder: Path, *arguments: str, quiet: bool = False) -> str:
    """Run DVC in `folder`; returns what it printed when `quiet`, else shows it.

    `repro` first mends what a killed DVC left there half-written, as `make repro` does.

    Raises:
        UserError: a stage failed; its own sentence stands above.
    """
    words = ("dvc", *arguments)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment(folder),
        text=True,
        stdout=subprocess.PIPE if quiet else None,
    )
    if done.returncode:
        print(done.stdout or "", file=sys.stderr)
        raise UserError(f"`dvc {' '.join(arguments)}` failed in the temporary copy. The sentence above says why.")
    return done.stdout or ""


def reproduce(folder: Path, graphs: tuple[str, ...] = GRAPHS) -> None:
    """Run every stage, then check that a second run finds nothing to do."""
    dvc(folder, "repro", *graphs)
    again = dvc(folder, "repro", *graphs, quiet=True)
    if "Running stage" in again:
        raise UserError(f"The second `dvc repro` ran stages again: {again}. An output or a dependency is not stable.")


def check_outputs(folder: Path, outputs: tuple[str, ...] = OUTPUTS + TABLE_OUTPUTS) -> None:
    """Every promised file is there."""
    missing = [name for name in outputs if not (folder / name).is_file()]
    if missing:
        raise UserError(f"The stages ran, but left no {', '.join(missing)}. Compare dvc.yaml with what they write.")


if __name__ == "__main__":
    run(main)
