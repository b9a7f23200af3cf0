"""Runs are compared byte for byte, and only what a clock decides is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.faults.kills.compare import differing, unreadable


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs with equal artefacts."""
    for name in ("calm", "rough"):
        (tmp_path / name / "reports").mkdir(parents=True)
        (tmp_path / name / "data").mkdir()
        (tmp_path / name / "models").mkdir()
        (tmp_path / name / "data/a.jsonl").write_text('{"id": 1}\n')
        (tmp_path / name / "reports/label.json").write_text(json.dumps({"labels": 3, "seconds": 1.0}))
        save_file({"w": torch.ones(2)}, tmp_path / name / "models/a.safetensors")
    return tmp_path / "calm", tmp_path / "rough"


def test_equal_runs_differ_in_nothing(runs: tuple[Path, Path]):
    (runs[1] / "reports/label.json").write_text(json.dumps({"labels": 3, "seconds": 2.0}))
    (runs[1] / "data/.a.jsonl.12.part").write_text("half")
    assert differing(*runs) == []


def test_how_batches_were_filled_is_left_out(runs: tuple[Path, Path]):
    """An interruption makes answers be decoded that were shared before."""
    slots = {"slots": 40, "slots_used": 30, "idle_share_of_slots": 0.25}
    (runs[1] / "reports/label.json").write_text(json.dumps({"labels": 3, "seconds": 1.0, **slots}))
    assert differing(*runs) == []


def test_the_block_that_a_clock_chooses_is_left_out_and_nothing_else(runs: tuple[Path, Path]):
    def write(run: Path, assisted: dict[str, int], block: int) -> None:
        entries = {"baselines": {"transformers_assisted": assisted, "strict": {"block": block}}}
        (run / "reports/benchmark.json").write_text(json.dumps(entries))
        (run / "reports/summary.json").write_text(json.dumps({"blocks": {"transformers_lookup": assisted["block"]}}))

    write(runs[0], {"block": 2, "tokens": 40}, 4)
    write(runs[1], {"block": 3, "tokens": 40}, 4)
    assert differing(*runs) == []
    write(runs[1], {"block": 2, "tokens": 41}, 4)
    assert differing(*runs) == ["reports/benchmark.json"]
    write(runs[1], {"block": 2, "tokens": 40}, 8)
    assert differing(*runs) == ["reports/benchmark.json"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("data/a.jsonl", '{"id": 2}\n'), ("data/new", ""), ("reports/label.json", '{"labels": 4, "seconds": 1.0}')],
)
def test_a_changed_or_further_artefact_is_named(runs: tuple[Path, Path], name: str, text: str):
    (runs[1] / name).write_text(text)
    assert differing(*runs) == [name]


def test_a_missing_artefact_is_named(runs: tuple[Path, Path]):
    (runs[1] / "data/a.jsonl").unlink()
    assert differing(*runs) == ["data/a.jsonl"]


def test_half_files_are_found(runs: tuple[Path, Path]):
    assert unreadable(runs[1]) == []
    for name in ("data/a.jsonl", "reports/label.json", "models/a.safetensors"):
        content = (runs[1] / name).read_bytes()
        (runs[1] / name).write_bytes(content[: len(content) // 2])
    assert len(unreadable(runs[1])) == 3
