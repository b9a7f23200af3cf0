"""The study of rounding: outcomes are counted against brute force, readings of another dtype are compared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gistgate.errors import UserError
from pipeline.labels.schema import Policy
from pipeline.labels.tables import num_rows, picked
from pipeline.params import Params
from pipeline.studies.labels import rounding
from tests.pipeline.labels.test_mining import PROMPTS, collected, pair, tools_for

__all__ = ["pair"]  # the fixture


def test_an_outcome_that_differs_from_its_label_is_counted_on_its_side(pair, monkeypatch):
    table, texts = collected(pair, tools_for(pair))
    table = picked(table, table["policy"] == Policy.SEQUENTIAL)
    monkeypatch.setattr(rounding, "tools_of", lambda *_: tools_for(pair, way="plain"))
    monkeypatch.setattr(rounding, "read_prompts", lambda _: [{"ids": ids} for ids in PROMPTS])
    monkeypatch.setattr(rounding, "load_task", lambda _: None)
    monkeypatch.setattr(rounding, "read_references", dict)
    found, known = rounding.kept(Params(), pair, table, texts), table["greedy_kept"]
    assert rounding.differing(known, found) == {"lost": 0, "won": 0}
    kept = known == 1
    turned = torch.where(kept, 0, 1).to(torch.int8)
    assert rounding.differing(turned, found) == {"lost": int((~kept).sum()), "won": int(kept.sum())}
    assert kept.any() and not kept.all()


def test_the_drawn_rows_keep_their_order_and_come_from_the_seed():
    labels = {name: torch.arange(50) for name in ("problem", "position")} | {
        "policy": torch.zeros(50, dtype=torch.int8)
    }
    one, same, other = (rounding.drawn(labels, 9, seed)["problem"].tolist() for seed in (1, 1, 2))
    assert one == same == sorted(one) != other and len(set(one)) == 9
    assert num_rows(rounding.drawn(labels, 99, 1)) == 50


def test_readings_are_compared_by_what_the_gate_says_of_them():
    gate = SimpleNamespace(features=("scalars",), probability=lambda x: x.sigmoid()[..., 0])
    first = {"scalars": torch.randn(6, 1)}
    first["same_target"] = torch.ones(6)
    same = rounding.compared(gate, first, first)
    assert same["mean_difference"] == same["largest_difference"] == 0 and same["same_target_token"] == 6
    other = {"scalars": -first["scalars"], "same_target": torch.tensor([1.0, 0, 1, 1, 1, 1])}
    found = rounding.compared(gate, first, other)
    assert found["largest_difference"] == pytest.approx(float((2 * first["scalars"].sigmoid() - 1).abs().max()))
    assert found["same_target_token"] == 5


def test_a_dtype_that_does_not_exist_is_named():
    assert rounding.dtype_of("bfloat16") == torch.bfloat16
    with pytest.raises(UserError, match="no dtype 'nn'. Use float32"):
        rounding.dtype_of("nn")


def test_it_is_named_before_the_pair_is_loaded(monkeypatch):
    monkeypatch.setattr(rounding, "read_params", lambda: pytest.fail("the study began"))
    with pytest.raises(UserError, match="no dtype 'float23'"):
        rounding.main(rows=1, dtype="float23")
