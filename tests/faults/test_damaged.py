"""Every damaged input is refused in one sentence; nothing is written, and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import running
from tests.faults.cases import COMMANDS, Case, cases
from tests.faults.world import build

pytest.importorskip("lm_eval")
ALL = cases()
SAMPLED = 6
"""Every so manieth case runs in the fast suite."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "world"
    folder.mkdir()
    build(folder)
    return folder


def marked(number: int, case: Case) -> object:
    return pytest.param(case, id=case.id, marks=[] if number % SAMPLED == 0 else [pytest.mark.slow])


def test_there_are_cases_enough():
    assert len(ALL) >= 200


@pytest.mark.parametrize("command", sorted(set(COMMANDS.values())))
def test_the_undamaged_project_is_accepted(world: Path, tmp_path: Path, command: str):
    """The cases fail because of their damage, and for no other reason."""
    case = Case("prompts.txt", "nothing", lambda path: None, command)
    found = running.complaint(case, world, tmp_path / "copy")
    assert found is not None and found.startswith("accepted")


@pytest.mark.parametrize("case", [marked(number, case) for number, case in enumerate(ALL)])
def test_damage_is_one_sentence(world: Path, tmp_path: Path, case: Case):
    assert running.complaint(case, world, tmp_path / "copy") is None


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL[::60], ids=lambda case: case.id)
def test_a_real_process_says_the_same(world: Path, tmp_path: Path, case: Case):
    assert running.complaint(case, world, tmp_path / "copy") is None
    if case.command.startswith("stage"):
        command = ["-m", f"pipeline.stages.{case.command.split()[1]}"]
    else:
        command = ["-m", "gistgate", *case.command.split()]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path / "copy", env={**running.os.environ, "PYTHONPATH": str(root)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == "" and "Traceback" not in done.stderr
