"""Which mismatches a budget buys."""

import pytest
import torch

from pipeline.labels.labelling import chosen_rows, is_asked_of, is_intact
from pipeline.labels.schema import picked, split_by_problem
from tests.pipeline.parameters import parameters

PLACES = torch.arange(400)
FITS = split_by_problem(PLACES // 10, parameters().train, parameters().seed).train


@pytest.fixture
def table():
    return {
        "problem": PLACES // 10,
        "greedy_kept": torch.where(PLACES % 10 == 0, 1, -1).to(torch.int8),
        "probability": torch.rand(400, generator=torch.Generator().manual_seed(0)),
    }


def chosen(table, **label):
    return chosen_rows(table, parameters(label=label))


@pytest.mark.parametrize("strategy", ["random", "uncertain"])
def test_the_budget_is_spent_to_the_last_label(table, strategy):
    judged = table["greedy_kept"] >= 0
    mask = chosen(table, budget=90, strategy=strategy)
    assert int((mask & ~judged).sum()) == 90
    assert bool(mask[judged].all())
    for budget in (360, None):
        assert bool(chosen(table, strategy=strategy, budget=budget).all())


def test_doubt_chooses_only_among_the_problems_that_a_head_is_fitted_on(table):
    """What is labelled of the others is the same whatever the pilot thinks."""
    mask = chosen(table, budget=90, strategy="uncertain")
    doubt = (table["probability"] - 0.5).abs()
    fits = FITS & (table["greedy_kept"] < 0)
    assert doubt[mask & fits].max() < doubt[~mask & fits].min()
    table["probability"] = 1 - table["probability"].flip(0)
    changed = chosen(table, budget=90, strategy="uncertain")
    assert torch.equal(mask[~FITS], changed[~FITS])
    assert bool(mask[~FITS].any())
    assert not torch.equal(mask, changed)


def test_the_rollouts_that_are_asked_for_settle_whether_a_text_is_intact():
    draw = torch.Generator().manual_seed(1)
    places = torch.arange(300)
    table = {"problem": places // 12, "policy": torch.zeros(300, dtype=torch.int8)}
    for name in ("accepted", "greedy_kept", "chosen"):
        table[name] = torch.randint(0, 2, (300,), generator=draw)
    table["chosen"] = table["chosen"].bool() & (places % 3 == 0)
    rolled = table["chosen"] | is_asked_of(table)
    assert int(rolled.sum()) < 300
    part = picked(table, rolled)
    whole_intact = is_intact(table)[table["chosen"]]
    part_intact = is_intact(part)[part["chosen"]]
    assert torch.equal(whole_intact, part_intact)
