"""Finished stages travel: outputs, locks, pieces, measured K and looks arrive in a copy that has none of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gistgate.certificates.ledger import Ledger, Look, fingerprint_of, hash_of
from gistgate.certificates.looks import LOCAL
from gistgate.errors import UserError
from gistgate.files import read_json, write_json, write_text
from pipeline.smoke import dvc
from pipeline.studies.real import carry
from pipeline.studies.real.study import PROPOSAL

GRAPH = "stages:\n  made:\n    cmd: echo made >> made.txt\n    outs: [made.txt]\n"


def project(folder: Path, changes: tuple[()] = ()) -> None:
    """A project of one stage, as copying it would leave it."""
    write_text(folder / "dvc.yaml", GRAPH)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    write_text(folder / ".dvc/config", "[core]\n    analytics = false\n    autostage = false\n")


def looked(folder: Path, *draws: list[int]) -> None:
    """Looks at prompts of these ids, one look for each draw."""
    known = Ledger()
    for ids in draws:
        hashes = [hash_of(ids)]
        known.admit(Look("claim", fingerprint_of(hashes), "code", "sequence", 0.05), hashes, 0.05)
    known.write(folder / LOCAL)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A copy whose stage ran."""
    project(tmp_path / "ran")
    dvc(tmp_path / "ran", "repro")
    write_json(tmp_path / "ran" / PROPOSAL, {"decoding": {"block": 3}})
    looked(tmp_path / "ran", [1])
    write_text(tmp_path / "ran/.scratch/calibrate/fly-1.jsonl", "{}\n")
    return tmp_path / "ran"


def test_what_was_carried_does_not_run_again(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "copy_project", project)
    carry.main(tmp_path / "kept", ran)
    carry.main(tmp_path / "kept", tmp_path / "other", back=True)
    assert (tmp_path / "other/made.txt").read_text() == "made\n"
    assert read_json(tmp_path / "other" / PROPOSAL) == {"decoding": {"block": 3}}
    assert Ledger.read(tmp_path / "other" / LOCAL) == Ledger.read(ran / LOCAL)
    assert (tmp_path / "other/.scratch/calibrate/fly-1.jsonl").read_text() == "{}\n"
    assert "didn't change" in dvc(tmp_path / "other", "repro", quiet=True)


def test_no_look_is_lost(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was carried is older than the copy: its list of looks would replace a longer one."""
    monkeypatch.setattr(carry, "copy_project", project)
    carry.main(tmp_path / "kept", ran)
    looked(ran, [1], [2])
    with pytest.raises(UserError, match="knows looks at calibration prompts that .*kept lacks"):
        carry.main(tmp_path / "kept", ran, back=True)
    assert len(Ledger.read(ran / LOCAL).looks) == 2
    carry.main(tmp_path / "kept", ran)
    assert len(Ledger.read(tmp_path / "kept" / LOCAL).looks) == 2


def test_an_empty_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished stage"):
        carry.main(tmp_path / "none", tmp_path / "copy", back=True)
    assert not (tmp_path / "copy").exists()
