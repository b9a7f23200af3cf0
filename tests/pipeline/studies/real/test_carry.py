"""Finished stages travel: outputs, locks, pieces, measured K and looks arrive in a copy that has none of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gistgate.certificates.looks import LOCAL
from gistgate.errors import UserError
from gistgate.files import read_json, write_json, write_text
from pipeline.smoke import dvc
from pipeline.studies.real import carry
from pipeline.studies.real.study import PROPOSAL

GRAPH = "stages:\n  made:\n    cmd: echo made >> made.txt\n    outs: [made.txt]\n"


def project(folder: Path) -> None:
    """A project of one stage, as copying it would leave it."""
    write_text(folder / "dvc.yaml", GRAPH)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    write_text(folder / ".dvc/config", "[core]\n    analytics = false\n    autostage = false\n")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A copy whose stage ran."""
    project(tmp_path / "ran")
    dvc(tmp_path / "ran", "repro")
    write_json(tmp_path / "ran" / PROPOSAL, {"decoding": {"block": 3}})
    write_json(tmp_path / "ran" / LOCAL, {"looks": []})
    write_text(tmp_path / "ran/.scratch/calibrate/fly-1.jsonl", "{}\n")
    return tmp_path / "ran"


def test_what_was_carried_does_not_run_again(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "copy_project", project)
    carry.main(tmp_path / "kept", ran)
    carry.main(tmp_path / "kept", tmp_path / "other", back=True)
    assert (tmp_path / "other/made.txt").read_text() == "made\n"
    assert read_json(tmp_path / "other" / PROPOSAL) == {"decoding": {"block": 3}}
    assert read_json(tmp_path / "other" / LOCAL) == {"looks": []}
    assert (tmp_path / "other/.scratch/calibrate/fly-1.jsonl").read_text() == "{}\n"
    assert "didn't change" in dvc(tmp_path / "other", "repro", quiet=True)


def test_an_empty_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished stage"):
        carry.main(tmp_path / "none", tmp_path / "copy", back=True)
    assert not (tmp_path / "copy").exists()
