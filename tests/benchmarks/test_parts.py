"""The parts of a compiled round that are timed alone are fed as the engine feeds them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import parts
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines import store
from gistgate.decoding.engines.program import build
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import tiny_model


@pytest.mark.parametrize("name", ["forward", "draft", "verification"])
def test_a_part_runs_behind_a_text(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(store, "build", lambda function, example, compiles: build(function, example, False))
    monkeypatch.setattr(store, "_stores", type(store._stores)())
    model = tiny_model("llama")
    decoder = Decoder(model, ModelDrafter(model), make_rule("exact"), 3, engine="compiled")
    part: Any = {
        "forward": parts.Forward(model, 4),
        "draft": parts.DraftStep(model, 3),
        "verification": parts.Verification(decoder, {"max_new_tokens": 8, "eos_ids": []}),
    }[name]
    assert parts.seconds_of(part, "compiled", 2, room=8) > 0
