"""Who is timed: transformers' speculation at the K that somebody else chose, and its compiled static cache."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.decode import Operating
from pipeline.params import parse_params
from pipeline.stages import benchmark
from pipeline.stages import benchmark as lineup
from tests.architectures import greedy, noisy_copy, prompts, tiny_model

REQUEST = {"max_new_tokens": 6, "stops": [], "eos_ids": []}
PARAMS = parse_params({"methods": {"lossless": {"exact": {"rule": "exact"}}}})


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(lineup, "request_of", lambda _prompts, _pair: REQUEST)
    monkeypatch.setattr(lineup, "operating_point", lambda _params, name: Operating(name, "exact", "model", 8))
    target = tiny_model("llama")
    return SimpleNamespace(target=target, draft=noisy_copy(target, 0.03), tokenizer=None, drafter="model")


def test_transformers_speculates_at_the_chosen_k(pair: Any):
    field = lineup.contenders(PARAMS, pair, [], {"assisted": 0, "prompt-lookup": 3})
    found = {one.name: one.block for one in field if one.name.startswith("transformers")}
    assert found == {"transformers_generate": 0, "transformers_assisted": 0, "transformers_lookup": 3}
    assert all(one.is_baseline for one in field) and field[1].also == ("exact",)
    ids = prompts(7)[0]
    for one in field:
        assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 6)], one.name


def test_the_stage_chooses_on_development_prompts_and_notes_what_fails(
    pair: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(benchmark, "SCRATCH", tmp_path)
    monkeypatch.setattr(benchmark, "dependencies", lambda _params: "0")
    seen: dict[str, Any] = {}
    splits = {"test": [{"ids": [1, 2]}, {"ids": [3]}], "development": [{"ids": [7]}] * 20}

    def choose(_pair: Any, _request: Any, development: Any, _keep: Any) -> tuple[dict[str, int], dict[str, str]]:
        seen["development"] = development
        return {"assisted": 4}, {"prompt-lookup": "unable"}

    def raced(field: Any, batches: Any, *_more: Any) -> Any:
        seen["batches"] = batches
        return {one.name: {"block": one.block} for one in field}

    monkeypatch.setattr(benchmark, "load_pair", lambda _params: pair)
    monkeypatch.setattr(benchmark, "read_prompts", splits.__getitem__)
    monkeypatch.setattr(benchmark, "request_of", lambda _prompts, _pair: REQUEST)
    monkeypatch.setattr(benchmark, "chosen", choose)
    monkeypatch.setattr(benchmark, "race", raced)
    monkeypatch.setattr(benchmark, "working", lambda field, _batch: ([], {field[0].name: "no"}))
    monkeypatch.setattr(benchmark, "write_json", lambda _path, value: seen.update(written=value))
    benchmark.benchmark(PARAMS)
    assert seen["development"] == [[7]] * 16 and seen["batches"] == [[[1, 2]], [[3]]]
    written = seen["written"]
    assert written["chosen_on"] == 16 and written["failed"] == {
        "transformers_static": "no",
        "transformers_lookup": "unable",
    }
    assert written["baselines"]["transformers_assisted"] == {"block": 4}
    assert list(tmp_path.iterdir()) == []  # what waits for another start goes with the result
