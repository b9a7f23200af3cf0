"""Shortened benchmarks of a run are asked for a method that the run has certified."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import gpu_checks, limit, memory, workload
from gistgate.files import write_json
from pipeline.common.operating_point import Operating

FREE = Operating("fly", "fly", "model", 8)
GATE = Operating("judge", "autojudge", "model", 8, head="logistic")


@pytest.mark.parametrize(
    ("points", "asked"), [([FREE, GATE], "judge"), ([FREE], "fly"), ([], "")], ids=["learned", "free", "none"]
)
def test_the_first_certified_method_is_asked_for(points: list[Operating], asked: str, monkeypatch: Any, tmp_path: Path):
    given: list[dict[str, Any]] = []

    def main(results: Path, **options: Any) -> None:
        given.append(options)
        write_json(results / "x.json", {"a": 1})

    monkeypatch.chdir(tmp_path)
    write_json(Path("data/prompts/test.jsonl"), {})
    monkeypatch.setattr(workload, "certified_points", lambda _params: {one.method: one for one in points})
    monkeypatch.setattr("pipeline.params.read_params", lambda: None)
    monkeypatch.setattr("pipeline.studies.table.params.table_params", lambda _params: SimpleNamespace())
    monkeypatch.setattr(gpu_checks, "device", lambda: "cpu")
    for module in (limit, memory):
        monkeypatch.setattr(module, "main", main)
        assert gpu_checks.of_a_run(module.__name__.removeprefix("benchmarks."))() == {"a": 1}
    assert [options.get("methods") for options in given] == [asked, None]
    assert given[1] == {"batch": 1}
