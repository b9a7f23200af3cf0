"""Run every stage on tiny sizes in a temporary copy, then again, when nothing may run: `python -m pipeline.smoke`. It
has its own parameters, DVC cache and tracking store; nothing in the working tree changes."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from gistgate.core.utils import UserError
from pipeline.paths import PARAMS
from pipeline.run import run

ROOT = Path(__file__).parents[1]
METHODS = ("exact", "fly", "autojudge", "sense", "segments")
TINY: dict[str, Any] = {
    "headline_budget": 0.5,  # so wide that something is certified
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
    "segments": {"problems": 16, "samples": 4, "epochs": 2, "hidden": 8},
    "methods": {"fly": {"variants": [{"window": 2}]}},
    "calibrate": {"budgets": [0.3, 0.5], "settings": 2, "evaluations": 2},
    "benchmark": {"prompts": 1, "development": 1},
    "adversarial": {"prompts": 2},
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gistgate-smoke-") as folder:
        copy_project(Path(folder))
        dvc(Path(folder), "repro")
        again = dvc(Path(folder), "repro", quiet=True)
    if "Running stage" in again:
        raise UserError(f"The second `dvc repro` ran stages again: {again}. An output or a dependency is not stable.")
    print("All stages ran.")


def copy_project(folder: Path) -> None:
    """Copy what Git knows or would take in, with tiny sizes in params.yaml, into a repository of its own."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    params = merged(yaml.safe_load((ROOT / PARAMS).read_text()), TINY)
    params["methods"] = {name: params["methods"][name] for name in METHODS}
    (folder / PARAMS).write_text(yaml.safe_dump(params, sort_keys=False))
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, block by block."""
    return base | {key: merged(base[key], one) if isinstance(one, dict) else one for key, one in changes.items()}


def dvc(folder: Path, *arguments: str, quiet: bool = False) -> str:
    """Run DVC in `folder` with nothing shared with the working tree; returns what it printed when `quiet`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_", "GISTGATE_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "DVC_NO_ANALYTICS": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=folder,
        env={**kept, **own},
        text=True,
        stdout=subprocess.PIPE if quiet else None,
    )
    if done.returncode:
        raise UserError(f"`dvc {' '.join(arguments)}` failed in the temporary copy. The sentence above says why.")
    return done.stdout or ""


if __name__ == "__main__":
    run(main)
