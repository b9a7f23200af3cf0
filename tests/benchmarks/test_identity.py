"""What an interrupted measurement belongs to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import workload
from benchmarks.workload import Workload
from pipeline.common.operating_point import Operating


def test_another_gate_another_machine_and_other_weights_are_another_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {"machine": 1, "pair": "a"}
    monkeypatch.setattr(workload, "gate_folder", lambda head: tmp_path / head)
    monkeypatch.setattr(workload, "machine", lambda: said["machine"])
    monkeypatch.setattr(workload, "maker_of", lambda _pair: said["pair"])
    gate, free = Operating("a", "autojudge", "model", 4, head="linear"), Operating("b", "fly", "model", 4)
    (tmp_path / "linear").mkdir()

    def identity(*points: Operating) -> str:
        return Workload.identity(SimpleNamespace(pair=None), points)  # type: ignore[arg-type]

    (tmp_path / "linear/weights").write_text("old")
    first = identity(gate, free)
    assert first == identity(gate, free) != identity(free)
    for changed in ({"machine": 2, "pair": "a"}, {"machine": 1, "pair": "b"}):
        said.update(changed)
        assert identity(gate, free) != first
    said.update({"machine": 1, "pair": "a"})
    (tmp_path / "linear/weights").write_text("new")
    assert identity(gate, free) != first
