"""Disturbances strike at the moment that they name, in the process that they name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.kills.moments import MOMENTS, RANDOM, draw
from tests.faults.kills.records import Records

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from tests.faults.kills.strike import Strike
from pathlib import Path

Strike.arm("pipeline.stages.some")
for number in range(3):
    part = Path(f".{number}.part")
    part.write_text("whole")
    part.replace(str(number))
Strike.finish()
"""


def run(folder: Path, **variables: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-c", WRITER], cwd=folder, env=environment).returncode


def order(folder: Path, **changes: Any) -> str:
    told = {
        "process": "pipeline.stages.some", "moment": "between writing and renaming", "count": 2, "delay": 0.0,
        "share": 0.5, "way": "kill the stage", "room": 0, "mount": "", "record": str(folder / "struck.jsonl"),
    }  # fmt: skip
    return json.dumps({**told, **changes})


def test_a_stage_is_killed_between_writing_and_renaming(tmp_path: Path):
    assert run(tmp_path, FAULT_ORDER=order(tmp_path)) == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == [".1.part", "0", "struck.jsonl"]
    assert (tmp_path / ".1.part").read_text() == "whole"


def test_a_stage_is_killed_just_after_a_rename(tmp_path: Path):
    assert run(tmp_path, FAULT_ORDER=order(tmp_path, moment="just after a rename")) == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "struck.jsonl"]


def test_another_process_is_left_alone(tmp_path: Path):
    assert run(tmp_path, FAULT_ORDER=order(tmp_path, process="pipeline.stages.other")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_without_an_order_the_moments_are_counted(tmp_path: Path):
    assert run(tmp_path, FAULT_CENSUS=str(tmp_path / "census")) == 0
    counts = json.loads((tmp_path / "census").read_text())["counts"]
    names = ("while a temporary file is written", "between writing and renaming", "just after a rename")
    assert counts == dict.fromkeys(names, 3)


def test_draws_name_moments_that_come(tmp_path: Path):
    counts = {moment.name: 5 for moment in MOMENTS if moment.when != "torn"}
    census = {name: {"counts": counts, "seconds": 3.0} for name in ("pipeline.repro", "pipeline.stages.some")}
    drawn = [draw(Random(seed), "some", "pipeline.stages.some", census, seed % 5) for seed in range(200)]
    assert {one["moment"] for one in drawn} == {*counts, RANDOM}
    assert all(one["process"] == "pipeline.repro some" for one in drawn if one["way"] == "kill DVC")


@pytest.mark.parametrize(
    ("line", "closing", "lost"),
    [
        ({}, {"status": 0, "differing": []}, 0),
        ({}, {"status": 1, "differing": []}, 1),
        ({}, {"status": 0, "differing": ["data/a"]}, 1),
        ({"stuck": "a lock"}, {"status": 0, "differing": []}, 1),
        ({"unreadable": ["data/a"]}, {"status": 0, "differing": []}, 1),
    ],
)
def test_a_loss_is_counted(tmp_path: Path, line: dict[str, Any], closing: dict[str, Any], lost: int):
    records = Records(tmp_path)
    records.begin()
    records.add({"struck": True, "unreadable": [], "stuck": "", **line})
    records.add({"struck": False, "unreadable": [], "stuck": ""})
    records.close(**closing)
    assert Records(tmp_path).lost() == lost


def test_what_was_never_compared_does_not_count(tmp_path: Path):
    records = Records(tmp_path)
    records.begin()
    records.add({"struck": True, "unreadable": [], "stuck": ""})
    again = Records(tmp_path)
    again.begin()
    assert again.struck() == []
