"""What is said about the time of a run, and when nothing is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from gistgate.errors import UserError
from pipeline.common import forecast
from pipeline.common.forecast import Measured, announce, left, minutes, note, ratio, read_measured, read_notes, renewed

ROOT = Path(__file__).parents[3]
MEASURED = Measured(50.0, {"pair": 100.0, "label@strict": 60.0, "report": 40.0})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forecast, "read_measured", lambda: MEASURED)
    return tmp_path


def test_every_stage_of_the_graph_has_a_time() -> None:
    graph = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    learned = yaml.safe_load((ROOT / "params.yaml").read_text())["methods"]["learned"]
    names = set()
    for name, stage in graph.items():
        each = stage.get("foreach")
        items = learned if isinstance(each, str) else each
        names |= {f"{name}@{item}" for item in items} if items else {name}
    assert set(read_measured().seconds) == names


@pytest.mark.parametrize(
    "notes, expected",
    [
        ({}, 1.0),
        ({"speed": 25.0}, 2.0),
        ({"speed": 25.0, "stages": {"pair": {"seconds": 50.0, "run": 7}}}, 0.5),
        ({"speed": 25.0, "stages": {"pair": {"seconds": 50.0, "run": 6}}}, 2.0),  # an earlier run
    ],
)
def test_finished_stages_say_how_fast_the_machine_is(notes: dict[str, object], expected: float) -> None:
    assert ratio(MEASURED, notes, 7) == expected


@pytest.mark.usefixtures("folder")
def test_what_is_left_counts_from_the_running_stage() -> None:
    assert left("label@strict", "embedded") == (
        "Stage 2 of 3, label@strict. Left overall: about 2 minutes, if none is skipped."
    )
    assert left("label@strict", "other") == "Stage 2 of 3, label@strict."
    assert left("datastore", "embedded") is None


@pytest.mark.parametrize("terminal, ci, stage, said", [
    (True, "", "pair", True), (False, "", "pair", False), (True, "true", "pair", False), (True, "", "", False),
])  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_only_a_person_at_a_terminal_is_told(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, ci: str, stage: str, said: bool
) -> None:
    heard: list[str] = []
    stream = SimpleNamespace(isatty=lambda: terminal, write=heard.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("DVC_STAGE", stage)
    announce("embedded")
    assert ("Stage 1 of 3" in "".join(heard)) == said


@pytest.mark.usefixtures("folder")
def test_a_stage_of_dvc_notes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    note(3.0)
    assert read_notes() == {}
    for stage, seconds in MEASURED.seconds.items():
        with pytest.raises(UserError, match="Run `make repro` from the start"):
            renewed(MEASURED, read_notes())
        monkeypatch.setenv("DVC_STAGE", stage)
        note(seconds / 2)
    assert ratio(MEASURED, read_notes(), os.getppid()) == 0.5
    assert yaml.safe_load(renewed(MEASURED, read_notes())) == {
        "speed": 50.0,
        "seconds": {"pair": 50.0, "label@strict": 30.0, "report": 20.0},
    }


@pytest.mark.usefixtures("folder")
def test_damaged_notes_are_no_notes() -> None:
    forecast.NOTES.parent.mkdir()
    forecast.NOTES.write_text("{")
    assert read_notes() == {}


def test_durations_are_whole_minutes() -> None:
    assert (minutes(3), minutes(61), minutes(150)) == ("about 1 minute", "about 1 minute", "about 2 minutes")


def test_the_probe_measures_a_speed() -> None:
    assert forecast.probe() > 0
