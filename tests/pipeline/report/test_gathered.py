"""Runs in copies of the project: one file never mixes parameters or code, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.errors import UserError
from pipeline.report import gathered

MODULE = "pipeline.stages.trace"


def test_runs_of_other_parameters_or_code_are_named_and_left_out(capsys: pytest.CaptureFixture[str]):
    rows = {"a": {gathered.MARK: "now"}, "b": {gathered.MARK: "before"}, "c": {}}
    assert gathered.kept(rows, lambda _name: "now") == {"a": rows["a"]}
    assert capsys.readouterr().out.strip().endswith("left out: b, c")
    assert gathered.kept({"a": rows["a"]}, lambda _name: "now") and capsys.readouterr().out == ""


def test_sources_that_change_between_two_copies_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gathered.copy(tmp_path / "one", {"seed": 7}, [MODULE])
    assert gathered.read_yaml(tmp_path / "one/params.yaml")["seed"] == 7
    original = gathered.copy_project

    def copying(place: Path, **changes: object) -> None:
        original(place, **changes)  # type: ignore[arg-type]
        path = place / "pipeline/stages/trace.py"
        path.write_text(path.read_text() + "\nEDITED = True\n")

    monkeypatch.setattr(gathered, "copy_project", copying)
    with pytest.raises(UserError, match="sources were changed"):
        gathered.copy(tmp_path / "two", {}, [MODULE])
