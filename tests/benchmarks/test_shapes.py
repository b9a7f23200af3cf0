"""Shapes are named before anything runs, and what fails with one pair takes nothing from the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_checks, scripted, shapes
from gistgate.errors import UserError
from gistgate.files import read_json
from tests.benchmarks.test_benchmarks import TINY


def test_pairs_are_checked_before_the_first_one_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shapes, "one", lambda *_: pytest.fail("it ran"))
    assert shapes.pairs_of("7B/0.5B, 8B/1B") == ["7B/0.5B", "8B/1B"]
    for pairs, said in (("8B/1B,7B", "'7B' is no pair of shapes. Write TARGET/DRAFT"), ("8B/1B,8B/3B", "'3B' is no")):
        with pytest.raises(UserError, match=said):
            shapes.main(pairs=pairs)


def test_what_does_not_run_is_listed_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch):
    """The compiled engines stand for anything that a machine lacks."""
    monkeypatch.setitem(scripted.SHAPES, "tiny", TINY)

    def unable(*_: Any) -> Any:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(shapes, "compiled", lambda *_: unable)
    monkeypatch.setattr("gistgate.decoding.engines.choice.Engine.programs", unable)
    found = shapes.one("tiny/tiny", 3, 0.1, 8, 2, False)
    broken = {"generate-static-compiled", *(f"{name}-compiled" for name in ("plain", "strict", "closed-gate"))}
    assert set(found["failed"]) == broken and found["limit"] == {}
    assert all(why == "RuntimeError: no compiler here" for why in found["failed"].values())
    working = {"generate", "assisted", *(f"{name}-eager" for name in ("plain", "strict", "closed-gate"))}
    assert set(found["contenders"]) == working and found["contenders"]["strict-eager"]["vs_generate"]["mean"] > 0


def test_every_finished_pair_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def one(name: str, *_: Any) -> dict[str, Any]:
        if name == "8B/1B":
            raise MemoryError
        return {"contenders": {"plain-eager": {"tokens_per_second": 1.0}}}

    monkeypatch.setattr(shapes, "one", one)
    with pytest.raises(MemoryError):
        shapes.main(pairs="7B/0.5B,8B/1B", results=tmp_path)
    (path,) = tmp_path.glob("shapes-*.json")
    assert list(read_json(path)["pairs"]) == ["7B/0.5B"]


@pytest.mark.parametrize(("label", "wrong"), [("generate-static-compiled", False), ("strict-compiled", True)])
def test_a_gpu_is_not_blamed_for_transformers(label: str, wrong: bool, monkeypatch: pytest.MonkeyPatch):
    found = {"contenders": {}, "failed": {label: "RuntimeError: no"}}
    monkeypatch.setattr(shapes, "one", lambda *_, **__: found)
    if wrong:
        with pytest.raises(UserError, match="strict-compiled does not run: RuntimeError: no"):
            gpu_checks.shapes()
    else:
        assert gpu_checks.shapes() == found
