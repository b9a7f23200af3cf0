"""Answers that calibration has kept belong to one gate, one rule and one run; others are decoded anew."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.files import fingerprint
from gistgate.gates.gate import Gate
from pipeline.certification import outcomes
from pipeline.certification.outcomes import Setup
from pipeline.params import parse_params
from tests.certificates.proofs import gate_with

PARAMS = {"methods": {"learned": {"judge": {"rule": "autojudge", "head": "logistic", "knob": "risk", "grid": [0.1]}}}}


@pytest.fixture
def place_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """(gate, what the run depends on, K) -> where its answers are kept."""
    monkeypatch.setattr(outcomes, "cached", lambda _decode, _folder, *depends, watcher: fingerprint(*depends))
    params = parse_params(PARAMS)

    def place(gate: Gate, dependencies: Any = "run", block: int = 8) -> Any:
        monkeypatch.setattr(outcomes, "load_gate", lambda head, pair: gate)
        own = {"dependencies": dependencies, "fresh": True, "usage": defaultdict(list)}
        setup: Any = SimpleNamespace(params=params, pair=None, **own)
        return Setup.loose(setup, "judge", params.method("judge"), block)

    return place


def test_another_gate_or_run_decodes_again(place_of: Any) -> None:
    gate, other = gate_with(1.0), gate_with(2.0)
    assert place_of(gate) == place_of(gate)
    assert len({place_of(gate), place_of(other), place_of(gate, "another run"), place_of(gate, block=4)}) == 4
