"""Programs are built in both ways and called by turns; a model whose layers differ says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import building
from gistgate.errors import UserError
from gistgate.files import read_json
from tests.architectures import deep_model, tiny_model
from tests.tiny import byte_tokenizer


def asked(folder: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The result for a model, whose programs are traced and not compiled."""
    for way in building.WAYS:
        of_graph = (lambda graph, _: graph) if way == "whole" else (lambda *given: building.chained(*given, as_it_is))
        monkeypatch.setitem(building.WAYS, way, of_graph)
    model.save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    building.main(str(folder / "model"), tokens="1,3", calls=2, results=folder)
    (path,) = folder.glob("building-*.json")
    return read_json(path)  # type: ignore[no-any-return]


def as_it_is(graph: Any, _example: Any) -> Any:
    return graph


def test_both_ways_are_timed_for_every_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(tmp_path, deep_model("llama", 4), monkeypatch)
    assert list(found["tokens"]) == ["1", "3"] and found["model"]["architecture"] == "llama"
    for one in found["tokens"].values():
        assert min(one["seconds_to_build"].values()) > 0 and set(one["seconds_to_build"]) == {"whole", "chained"}
        assert one["step_whole_vs_chained"]["low"] <= one["step_whole_vs_chained"]["high"]


def test_a_model_without_repeated_layers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Fewer than three layers .* are alike"):
        asked(tmp_path, tiny_model("llama"), monkeypatch)
