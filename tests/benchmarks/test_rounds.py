"""Shares of rounds add up, for one row and for several."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import rounds
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.rules import make_rule
from tests.architectures import noisy_copy, prompts, tiny_model


def profiled(field: Any, batches: Any, folder: Path) -> Any:
    """The published figures of these cases."""
    request = {"max_new_tokens": 8, "eos_ids": []}
    return rounds.profiles(field, rounds.measured(field, batches, request, folder))


@pytest.mark.parametrize("size", [1, 3])
def test_parts_and_rest_are_the_whole_round(size: int, tmp_path: Path):
    target = tiny_model("llama")
    decoder = Decoder(target, ModelDrafter(noisy_copy(target, 0.03)), make_rule("exact"), 3)
    batches = rounds.batches_of(prompts(5, 6, 7, 8, 9, 10), size, "--batches")
    found = profiled({("eager", "strict"): decoder}, batches, tmp_path)["eager", "strict"]
    shares = {name: one["mean"] for name, one in found["shares"].items()}
    assert sum(share for name, share in shares.items() if name != "outside") == pytest.approx(1)
    assert all(share > 0 for share in shares.values()) and shares["outside"] < 0.9
    assert (found["n"], found["block"]) == (6 // size, 3) and 1 < found["tau"] <= 4


def test_shares_are_those_of_summed_seconds():
    seconds = {
        "draft": [1.0, 2.0],
        "verify": [2.0, 2.0],
        "accept": [0.5, 0.5],
        "total": [4.0, 6.0],
        "wall": [5.0, 15.0],
    }
    found = rounds.shares_of({name: torch.tensor([column]) for name, column in seconds.items()})
    expected = {"draft": 0.3, "verify": 0.4, "accept": 0.1, "rest": 0.2, "outside": 0.5}
    assert {name: float(share) for name, share in found.items()} == pytest.approx(expected)


def test_an_interrupted_measurement_decodes_what_is_missing_only(tmp_path: Path):
    target = tiny_model("llama")
    decoder = Decoder(target, ModelDrafter(noisy_copy(target, 0.03)), make_rule("exact"), 3)
    field, batches = {("eager", "strict"): decoder}, rounds.batches_of(prompts(5, 6, 7), 1, "--batches")
    first = profiled(field, batches, tmp_path)
    assert profiled(field, batches, tmp_path) == first  # seconds would differ
    kept = {path: path.read_text() for path in sorted(tmp_path.glob("batch-*"))}
    list(kept)[1].unlink()
    again = profiled(field, batches, tmp_path)["eager", "strict"]
    assert again["tau"] == first["eager", "strict"]["tau"] and again["warm_up"] == first["eager", "strict"]["warm_up"]
    assert [path.read_text() == text for path, text in kept.items()] == [True, False, True]


def test_an_engine_is_compared_with_the_eager_one_by_tokens_per_second():
    decoder: Any = SimpleNamespace(block=3)
    field = {("eager", "strict"): decoder, ("compiled", "strict"): decoder}
    spent = {"draft": 1.0, "verify": 2.0, "accept": 0.0, "total": 3.0, "forwards": 2, "warm_up": 9.0}
    batch = {
        "eager: strict": {**spent, "wall": 4.0, "tokens": 8},
        "compiled: strict": {**spent, "wall": 3.0, "tokens": 9},  # 3 tokens per second instead of 2
    }
    found = rounds.profiles(field, [batch, batch])
    assert found["compiled", "strict"]["vs_eager"] == pytest.approx({"mean": 1.5, "low": 1.5, "high": 1.5})
    assert "vs_eager" not in found["eager", "strict"] and found["eager", "strict"]["warm_up"] == 9.0


def test_methods_that_are_not_certified_are_refused():
    workload: Any = SimpleNamespace(points={"fly": 1}, params=SimpleNamespace(decoding=SimpleNamespace(strict_block=4)))
    assert list(rounds.cases_of(workload, "fly")) == ["strict K=4", "fly"]
    with pytest.raises(UserError, match="'prob' is not certified here. Known: fly"):
        rounds.cases_of(workload, "prob")


def test_strict_decoding_and_free_rules_are_measured_without_a_learned_method():
    params = SimpleNamespace(decoding=SimpleNamespace(strict_block=4))
    points = {name: SimpleNamespace(head=None) for name in ("prob", "fly")}
    workload: Any = SimpleNamespace(points=points, params=params, headline=[])
    assert list(rounds.cases_of(workload, "")) == ["strict K=4", "fly"]
