"""Processes that sleep and processes that wait take turns, and their parts are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import waiting
from gistgate.errors import UserError
from gistgate.files import read_json
from tests.architectures import tiny_model


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A pair with a draft model, which the run in this folder is about."""
    found = SimpleNamespace(target=tiny_model("llama"), draft=tiny_model("qwen2"))
    params = SimpleNamespace(pair="tiny", decoding=SimpleNamespace(block=3))
    monkeypatch.setattr(waiting, "read_params", lambda: params)
    monkeypatch.setattr(waiting, "load_pair", lambda _: found)
    return found


def test_a_process_times_every_part(pair: SimpleNamespace):
    found = waiting.milliseconds(2)
    assert set(found) == {"draft step", "plain step", "verification"} and all(one > 0 for one in found.values())
    pair.draft = None
    with pytest.raises(UserError, match="no draft model whose steps could be timed"):
        waiting.milliseconds(2)


def test_the_processes_take_turns_and_are_compared(pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def apart(_module: str, _arguments: list[Any], variables: dict[str, str]) -> dict[str, float]:
        asked.append(variables["GOMP_SPINCOUNT"])
        return {"draft step": 54.0 if variables["GOMP_SPINCOUNT"] == "0" else 27.0}

    monkeypatch.setattr(waiting, "apart", apart)
    waiting.main(rounds=2, results=tmp_path)
    assert asked == ["10000", "0", "0", "10000"]
    (path,) = tmp_path.glob("waiting-*.json")
    part = read_json(path)["parts"]["draft step"]
    assert part["asleep_vs_waiting"] == {"mean": 2, "low": 2, "high": 2, "kind": "range"}
    assert part["milliseconds"] == {"asleep": 54, "waiting": 27}
