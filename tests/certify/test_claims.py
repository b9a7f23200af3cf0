"""Errors of the tests of claims in simulation, and what their figures say."""

import numpy as np
import pytest

from gistgate.certificates import bounds
from gistgate.certificates.planning import Plan
from gistgate.certify import claims
from gistgate.certify.claims import CLAIMS

REPETITIONS = 1000
BUDGET = 0.1
PROMPTS = 50


def draws(claim, random):
    """Pairs whose mean loss is the budget: [N, 2]."""
    if claim == "length":
        baseline = random.uniform(0.1, 0.5, PROMPTS)
        return np.stack([baseline, baseline * random.choice([1.0, 1 + 2 * BUDGET], PROMPTS)], 1)
    d = random.choice([1.0, 0.0], PROMPTS, p=[BUDGET, 1 - BUDGET])
    if claim == "graded":
        d = random.uniform(0, 2 * BUDGET, PROMPTS)
    return np.stack([np.ones(PROMPTS), 1 - d], 1)


@pytest.mark.parametrize("claim", ["agreement", "graded", "length"])
def test_a_verdict_before_the_end_errs_in_5_of_100_runs_at_most(claim, monkeypatch):
    """At a loss that is just the budget, PASS and FAIL, with an end after every prompt; three
    standard errors of 1,000 runs are allowed.
    """
    for module in (bounds, claims):
        monkeypatch.setattr(module, "RESOLUTION", 2e-3)
    random = np.random.default_rng(0)
    tested = CLAIMS.get(claim, CLAIMS["score"])(BUDGET)
    errors = {"PASS": 0, "FAIL": 0, "UNDECIDED": 0, "bound": 0, "lower": 0}
    for _ in range(REPETITIONS):
        figures = tested.test(draws(claim, random), 0.95, "clear", claim == "agreement")
        errors[figures.verdict] += 1
        errors["bound"] += figures.bound is not None and figures.bound < BUDGET
        errors["lower"] += figures.lower > BUDGET
    del errors["UNDECIDED"]
    limit = REPETITIONS * 0.05 + 3 * (REPETITIONS * 0.05 * 0.95) ** 0.5
    assert max(errors.values()) <= limit


@pytest.mark.parametrize("claim, ternary, confidence", [
    ("score", True, 0.975), ("agreement", True, 0.975), ("score", False, 0.95),
    ("length", False, 0.95),
])  # fmt: skip
def test_figures_say_at_which_confidence_the_bound_was_computed(claim, ternary, confidence):
    pairs_N2 = np.full((PROMPTS, 2), 0.5)
    if claim == "agreement":
        pairs_N2[:] = 1.0
    figures = CLAIMS[claim](BUDGET).test(pairs_N2, 0.95, "clear", ternary)
    assert figures.tested_at == pytest.approx(confidence)


def test_a_plan_for_graded_scores_asks_for_the_prompts_that_bets_need():
    """With the whole error of 5 %, as no exact bound shares it."""
    need = Plan(BUDGET, 0.95, ternary=False, stop="clear").needed(0.0)
    pairs_N2 = np.full((need, 2), 0.5)
    claim = CLAIMS["score"](BUDGET)
    assert claim.test(pairs_N2, 0.95, "clear", ternary=False).verdict == "PASS"
    assert claim.test(pairs_N2[1:], 0.95, "clear", ternary=False).verdict == "UNDECIDED"


def test_the_bounds_of_a_growth_hold_whatever_the_mean_length():
    random = np.random.default_rng(1)
    baseline = random.uniform(0.05, 0.5, 400)
    pairs_N2 = np.stack([baseline, 1.05 * baseline], 1)
    figures = CLAIMS["length"](BUDGET).test(pairs_N2, 0.95)
    assert figures.verdict == "PASS" and figures.loss == pytest.approx(0.05)
    assert figures.lower < 0.05 < figures.bound <= BUDGET
    pairs_N2[:, 1] = 1.5 * baseline
    lost = CLAIMS["length"](BUDGET).test(pairs_N2, 0.95)
    assert lost.verdict == "FAIL" and BUDGET < lost.lower < 0.5
    few = CLAIMS["length"](BUDGET).test(pairs_N2[:3], 0.95)
    assert few.verdict == "UNDECIDED" and few.bound is None
