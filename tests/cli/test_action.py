"""The GitHub Action: its step is run as a shell runs it there, on logs, without GitHub."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {
    step.get("id") or step.get("name") or step["uses"]: step for step in ACTION["runs"]["steps"]
}


def run(folder: Path, **inputs: str) -> tuple[int, str, str]:
    """The status, outputs and summary of the step that certifies."""
    command = folder / "bin/gistgate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gistgate "$@"\n')
    command.chmod(0o755)
    usual = {name: entry["default"] for name, entry in ACTION["inputs"].items()} | inputs
    values = {f"${{{{ inputs.{name} }}}}": value for name, value in usual.items()}
    step = STEPS["certify"]
    said = {name: values.get(value, str(folder / "out")) for name, value in step["env"].items()}
    places = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = f"{command.parent}:{os.environ['PATH']}"
    environment = {**os.environ, **said, **places, "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    status = subprocess.run(shell, env=environment, cwd=folder, check=False).returncode
    return status, *(Path(place).read_text() for place in places.values())


def write_runs(folder: Path, lost: int) -> None:
    """Two tables of scores, of which the second has lost some, and a file that names them."""
    for name, wrong in (("old", 0), ("new", lost)):
        rows = "".join(f"{number},{int(number >= wrong)}\n" for number in range(500))
        (folder / f"{name}.csv").write_text(f"id,score\n{rows}")
    (folder / "certify.yaml").write_text("baseline: old.csv\ncandidate: new.csv\nbudget: 0.02\n")


@pytest.mark.parametrize(
    ("lost", "inputs", "status", "verdict"),
    [
        (0, {"settings": "certify.yaml"}, 0, "PASS"),
        (100, {"settings": "certify.yaml"}, 1, "FAIL"),
        (0, {"settings": "certify.yaml", "options": "--budget=0.001\n"}, 3, "UNDECIDED"),
        (
            0,
            {
                "options": "--baseline\nold.csv\n\n--candidate\nnew.csv\n--budget=0.001",
                "allow-undecided": "true",
            },
            0,
            "UNDECIDED",
        ),
        (0, {"options": "--baseline=none.csv\n--candidate=new.csv"}, 2, "ERROR"),
    ],
)
def test_the_verdict_is_the_status_an_output_and_the_summary(
    tmp_path, lost, inputs, status, verdict
):
    write_runs(tmp_path, lost)
    left, output, summary = run(tmp_path, **inputs)
    assert (left, output) == (status, f"verdict={verdict}\n")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    if verdict == "ERROR":
        assert "none.csv" in summary and files == {"said.txt"}
    else:
        assert summary.startswith(f"# {verdict} budget") and "junit.xml" in files


def test_the_example_of_the_documentation_uses_the_action_as_it_is():
    page = (ROOT / "docs/certificates.md").read_text()
    [text] = [part for part in page.split("```") if part.startswith("yaml\non:")]
    [job] = yaml.safe_load(text.removeprefix("yaml"))["jobs"].values()
    steps: list[dict[str, Any]] = [
        step for step in job["steps"] if "/gistgate@" in step["uses"].lower()
    ]
    assert steps and all(set(step["with"]) <= set(ACTION["inputs"]) for step in steps)
    uploaded = STEPS["actions/upload-artifact@v4"]
    assert (
        uploaded["if"] == "always()" and STEPS["certify"]["env"]["OUT"] == uploaded["with"]["path"]
    )
