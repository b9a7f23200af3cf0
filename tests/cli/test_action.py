"""The GitHub Action: its step is run as a shell runs it there, on logs and on servers, without
GitHub.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.certify.scripted import Script, serving

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
    values[step["env"]["OUT"]] = str(folder / "out")
    said = {name: values.get(value, value) for name, value in step["env"].items()}
    places = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = f"{command.parent}:{os.environ['PATH']}"
    environment = {**os.environ, **said, **places, "PATH": path, "PYTHONPATH": str(ROOT)}
    environment["GITHUB_ACTIONS"] = "true"
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
    ],
)
def test_the_verdict_is_the_status_an_output_and_the_summary(
    tmp_path, lost, inputs, status, verdict
):
    write_runs(tmp_path, lost)
    left, output, summary = run(tmp_path, **inputs)
    assert (left, output) == (status, f"verdict={verdict}\n")
    assert summary.startswith(f"# {verdict} budget") and (tmp_path / "out/junit.xml").is_file()


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("--baseline=none.csv\n--candidate=old.csv", "none.csv"),
        ("--bugdet=0.02", "No such option: --bugdet"),
    ],
)
def test_where_nothing_is_compared_the_summary_says_why(tmp_path, options, cause):
    write_runs(tmp_path, 0)
    left, output, summary = run(tmp_path, options=options)
    assert (left, output) == (2, "verdict=ERROR\n")
    assert cause in summary and "\x1b" not in summary
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["said.txt"]


@pytest.fixture
def servers(tmp_path):
    """Options that compare two servers which answer alike."""
    prompts = "".join(f'{{"prompt": "{n} + 1", "answer": {n + 1}}}\n' for n in range(200))
    (tmp_path / "prompts.jsonl").write_text(prompts)
    with serving(Script()) as baseline, serving(Script()) as candidate:
        addresses = f"--baseline={baseline}\n--candidate={candidate}"
        yield f"{addresses}\n--file=prompts.jsonl\n--budget=0.1\n--control=2"


def test_servers_are_compared(tmp_path, servers):
    left, output, summary = run(tmp_path, options=f"{servers}\n--keep-texts")
    assert (left, output) == (0, "verdict=PASS\n")
    assert summary.startswith("# PASS budget 10.0 points")
    files = {path.name.removeprefix("served-certificate") for path in (tmp_path / "out").iterdir()}
    assert files == {".json", ".md", ".html", ".records.jsonl", "junit.xml", "said.txt"}


def test_a_server_that_is_not_there_is_named_behind_the_plan(tmp_path, servers):
    left, output, summary = run(tmp_path, options=f"{servers}\n--candidate=http://127.0.0.1:9/v1")
    assert (left, output) == (2, "verdict=ERROR\n")
    assert "http://127.0.0.1:9/v1 cannot be reached" in summary.splitlines()[-2]


def test_the_example_of_the_documentation_uses_the_action_as_it_is():
    page = (ROOT / "docs/certify.md").read_text()
    [text] = [part for part in page.split("```") if part.startswith("yaml\n# .github/workflows")]
    [job] = yaml.safe_load(text.removeprefix("yaml"))["jobs"].values()
    steps: list[dict[str, Any]] = [
        step for step in job["steps"] if "/gistgate@" in step["uses"].lower()
    ]
    assert steps and all(set(step["with"]) <= set(ACTION["inputs"]) for step in steps)
    uploaded = STEPS["actions/upload-artifact@v4"]
    assert (
        uploaded["if"] == "always()" and STEPS["certify"]["env"]["OUT"] == uploaded["with"]["path"]
    )
