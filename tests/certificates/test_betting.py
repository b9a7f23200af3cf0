"""A bet that pays only where the loss is small: nobody gets rich by luck more often than
promised.
"""

import math
from itertools import product

import numpy as np
import pytest

from gistgate.certificates.bounds import (
    STAKES_S,
    SequentialTest,
    betting_bound,
    growth,
    refutes,
    wealth,
)

ALPHA = 0.05
VALUES = np.array([1.0, 0.0, -1.0])


def draws(losses: float, gains: float, n: int, runs: int, seed: int) -> np.ndarray:
    """Differences of many calibrations `[runs, n]` in a world with these rates."""
    return np.random.default_rng(seed).choice(
        VALUES, (runs, n), p=[losses, 1 - losses - gains, gains]
    )


def all_paths(n: int, p_loss: float, p_gain: float) -> tuple[np.ndarray, np.ndarray]:
    """All 3^n outcomes of n prompts and their probabilities."""
    index = np.array(list(product(range(3), repeat=n)))
    return VALUES[index], np.array([p_loss, 1 - p_loss - p_gain, p_gain])[index].prod(-1)


@pytest.mark.parametrize("bet", [growth, lambda d, loss: growth(-d, -loss)])
@pytest.mark.parametrize("p_loss, p_gain", [(0.3, 0.1), (0.6, 0.4), (0.2, 0.0)])
def test_at_the_boundary_the_bet_is_fair(bet, p_loss, p_gain):
    """Expected wealth over all outcomes stays exactly 1."""
    d, probability = all_paths(6, p_loss, p_gain)
    final = np.exp(wealth(bet(d, p_loss - p_gain).sum(1)))
    assert (final * probability).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("alpha", [0.5, 0.3, 0.1])
def test_looking_after_every_prompt_costs_nothing(alpha):
    """Full enumeration: wealth ever reaches 1 / alpha with probability alpha at most, and not
    never.
    """
    d, probability = all_paths(9, 0.4, 0.2)
    ever = wealth(growth(d, 0.2).cumsum(1)).max(1) >= -math.log(alpha)
    assert 0 < probability[ever].sum() <= alpha


def test_a_false_certificate_is_rare_however_long_one_watches():
    """The hardest world, loss at the budget and 5 % discordance, watched over 2000 prompts: false
    in 5 % at most.
    """
    d = draws(0.035, 0.015, 2000, 400, seed=7)
    assert np.mean([refutes(row, 0.02, 0.95) for row in d]) <= 0.05
    assert (
        np.mean([refutes(row, 0.04, 0.95) for row in d]) > 0.75
    )  # a budget that holds is found out


def test_the_bound_covers_the_loss_of_scores_between_right_and_wrong():
    d = np.random.default_rng(3).choice([0.7, 0.2, 0.0, -0.4], (100, 200), p=[0.1, 0.2, 0.6, 0.1])
    true = 0.07 + 0.04 - 0.04
    bounds = np.array([betting_bound(row, ALPHA) for row in d])
    assert (bounds >= true).mean() >= 0.95
    assert true < bounds.mean() < 0.15


def test_the_bound_is_where_the_refutation_begins():
    d = draws(0.03, 0.02, 800, 1, seed=1)[0]
    bound = betting_bound(d, ALPHA)
    assert refutes(d, bound, 1 - ALPHA)
    assert not refutes(d, bound - 2e-6, 1 - ALPHA)
    assert betting_bound(d, 0.01) > bound > d.mean()
    assert (betting_bound(-np.ones(20), ALPHA), betting_bound(np.ones(20), ALPHA)) == (0.0, 1.0)


def test_wealth_grows_with_the_loss_that_is_bet_against():
    """Halving finds the bound only if this holds for every outcome and stake."""
    grid = [growth([1.0, 0.3, 0.0, -1.0], loss) for loss in np.linspace(0, 0.99, 100)]
    assert (np.diff(grid, axis=0) >= 0).all()
    assert np.isfinite(grid).all() and (STAKES_S < 1).all()


def answer_at(d, budget, confidence):
    """The answer along all differences, and after how many of them it was clear."""
    test = SequentialTest(budget, confidence)
    return test.update(d), test.n


def test_it_stops_when_the_answer_is_clear_and_stays_with_it():
    test = SequentialTest(0.02, 0.95)
    answers = [test.update([0.0]) for _ in range(400)]
    first = answers.index("within")
    assert answers[:first] == [None] * first and first < 299
    assert {test.update([1.0]) for _ in range(200)} == {"within"} and test.n == first + 1
    assert not refutes(np.zeros(first), 0.02, 0.95) and refutes(np.zeros(first + 1), 0.02, 0.95)


def test_either_answer_is_wrong_rarely():
    """Loss exactly at the budget: each answer comes by luck alone, in at most 5 % of the runs."""
    answers = [answer_at(row, 0.04, 0.95)[0] for row in draws(0.06, 0.02, 1000, 200, seed=5)]
    assert answers.count("within") <= 10 and answers.count("beyond") <= 10
    assert answers.count(None) > 180


@pytest.mark.parametrize("losses, gains", [(0.0, 0.0), (0.02, 0.02), (0.15, 0.02), (0.05, 0.02)])
def test_watching_prompt_by_prompt_says_what_the_whole_says(losses, gains):
    """Whether the budget is kept, lost or open at the end."""
    d = draws(losses, gains, 300, 1, seed=6)[0]
    test = SequentialTest(0.03, 0.95)
    for x in d:
        test.update([x])
    assert (test.answer, test.n) == answer_at(d, 0.03, 0.95)
