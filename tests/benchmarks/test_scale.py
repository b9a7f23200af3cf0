"""What labels cost on large targets: the formula of docs/scale.md, and the costs of a run that it starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from benchmarks import scale
from gistgate.errors import UserError
from gistgate.files import read_json, write_json, write_json_lines
from pipeline.labels.cost import Cost

ROOT = Path(__file__).parents[2]


@pytest.fixture
def a_run(tmp_path, monkeypatch) -> Path:
    """Costs of two passes with 64 rollouts at once, one reference answer of 50 tokens, and one shard."""
    monkeypatch.chdir(tmp_path)
    write_json(Path("params.yaml"), {"label": {"batch_size": 64}})
    way = {"way": "plain", "tokens_per_second": {"plain": 100.0, "speculative": 50.0}}
    cost = Cost(labels=10, rollout_tokens=200, target_tokens=300, draft_tokens=100, seconds=4.0)
    for name, found in (("collect-strict", None), ("label-strict", way)):
        write_json(Path(f"reports/labels/{name}.json"), {**cost.as_json(), "greedy_rollouts": found})
    write_json_lines(Path("data/reference/train.jsonl"), [{"ids": [0] * 50}])
    Path("data/features/strict").mkdir(parents=True)
    save_file({"x": torch.zeros(20, 8)}, "data/features/strict/rows-00000.safetensors")
    return tmp_path


def test_rates_are_sums_over_all_passes(a_run):
    found = scale.measured()
    assert found["labels"] == 20 and found["labels_per_hour"] == 20 / 8 * 3600
    assert found["rollout_tokens_per_label"] == 20 and found["tokens_read_per_label"] == 40
    assert found["overhead"] == pytest.approx(8.0 / (400 / 100))
    assert found["answer_tokens"] == 50 and found["rows"] == 64
    assert found["feature_bytes_per_label"] >= 20 * 8 * 4 / 20


def test_hours_are_those_of_the_formula_on_the_page(a_run):
    found, target = scale.measured(), scale.Target(1e9, 100)
    one = scale.extrapolated(found, target, labels=1000, answer=200.0)
    rate = one["tokens_per_second"]
    assert rate == pytest.approx(64 / (2e9 / 3.35e12))  # reading the weights takes longer than computing
    assert one["gpu_hours"] == pytest.approx(1000 * 20 * (200 / 50) * 2.0 / (3600 * rate))
    assert one["storage_gb"] == pytest.approx(1000 * (4 * (2 * 100 + 14) + found["other_bytes_per_label"]) / 1e9)


def test_a_folder_without_timed_labels_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="make repro"):
        scale.measured()


def test_the_published_extrapolation_follows_from_the_published_rates():
    published: dict[str, Any] = read_json(ROOT / "benchmarks/results/scale.json")
    chosen = published["extrapolated"]
    for name, target in scale.TARGETS.items():
        again = scale.extrapolated(published["measured"], target, chosen["labels"], chosen["answer_tokens"])
        assert json.loads(json.dumps(again)) == pytest.approx(chosen[name])
