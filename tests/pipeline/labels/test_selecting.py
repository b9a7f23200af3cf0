"""Which mismatches a budget buys."""

import pytest
import torch

from pipeline.labels.labelling import is_asked_of, is_intact
from pipeline.labels.mining import chosen_rows
from pipeline.labels.schema import picked, split_by_problem
from tests.pipeline.parameters import parameters

PARAMS = parameters()
FITS = split_by_problem(torch.arange(400) // 10, PARAMS.train, PARAMS.seed).train


@pytest.fixture
def table():
    return {
        "problem": torch.arange(400) // 10,
        "greedy_kept": torch.where(torch.arange(400) % 10 == 0, 1, -1).to(torch.int8),
        "probability": torch.rand(400, generator=torch.Generator().manual_seed(0)),
    }


def chosen(table, **label):
    return chosen_rows(table, parameters(label=label))


@pytest.mark.parametrize("strategy", ["random", "uncertain"])
def test_the_budget_is_spent_to_the_last_label(table, strategy):
    known, mask = table["greedy_kept"] >= 0, chosen(table, budget=90, strategy=strategy)
    assert int((mask & ~known).sum()) == 90 and bool(mask[known].all())
    assert all(
        bool(chosen(table, strategy=strategy, **budget).all()) for budget in ({"budget": 360}, {})
    )


def test_doubt_chooses_only_among_the_problems_that_a_head_is_fitted_on(table):
    """What is labelled of the others is the same whatever the pilot thinks."""
    other = {**table, "probability": 1 - table["probability"].flip(0)}
    mask, changed = (chosen(one, budget=90, strategy="uncertain") for one in (table, other))
    doubt, fits = (table["probability"] - 0.5).abs(), FITS & (table["greedy_kept"] < 0)
    assert doubt[mask & fits].max() < doubt[~mask & fits].min()
    assert (
        torch.equal(mask[~FITS], changed[~FITS])
        and bool(mask[~FITS].any())
        and not torch.equal(mask, changed)
    )


def test_the_rollouts_that_are_asked_for_settle_whether_a_text_is_intact():
    draw = torch.Generator().manual_seed(1)
    columns = {
        name: torch.randint(0, 2, (300,), generator=draw)
        for name in ("accepted", "greedy_kept", "chosen")
    }
    table = {
        "problem": torch.arange(300) // 12,
        "policy": torch.zeros(300, dtype=torch.int8),
        **columns,
    }
    table["chosen"] = table["chosen"].bool() & (torch.arange(300) % 3 == 0)
    made = table["chosen"] | is_asked_of(table)
    assert int(made.sum()) < 300
    whole, part = (
        is_intact(table, table["greedy_kept"]),
        is_intact(picked(table, made), table["greedy_kept"][made]),
    )
    assert torch.equal(whole[table["chosen"]], part[table["chosen"][made]])
