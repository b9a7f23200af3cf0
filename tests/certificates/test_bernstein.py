"""The plug-in bound holds, is that of its theorem, and is sharper than the fixed-n inequality."""

import math
from itertools import product

import numpy as np
import pytest

from gistgate.certificates.bounds import bernstein_bound, plug_in_bound


def test_all_outcomes_of_a_few_prompts_together_miss_the_loss_rarely():
    """Full enumeration of 8 prompts, at a level loose enough that some outcomes do miss."""
    values, probability = np.array([1.0, 0.5, -1.0]), np.array([0.85, 0.1, 0.05])
    true, alpha = float(values @ probability), 0.6
    index = np.array(list(product(range(3), repeat=8)))
    short = [plug_in_bound(d, alpha) < true for d in values[index]]
    assert 0 < probability[index].prod(-1)[short].sum() <= alpha


def test_it_is_sharper_than_the_inequality_for_a_fixed_number():
    d = np.random.default_rng(2).permutation(np.resize([0.5, -0.5, *[0.0] * 8], 1000))
    assert d.mean() < plug_in_bound(d, 0.05) < bernstein_bound(0.0, float(d.var()), 1000, 0.05)


def written_out(d, alpha):
    """Theorem 2 of arXiv 2010.09686 prompt by prompt, with its plug-in weights, as upper bounds on mean(d)."""
    log, best = math.log(1 / alpha), 1.0
    mean, variance, seen, squares = 0.5, 0.25, 0.0, 0.0
    weights = weighted = price = 0.0
    for t, difference in enumerate(d, 1):
        x = (1 + difference) / 2
        weight = min(math.sqrt(2 * log / (variance * len(d))), 0.75)
        psi = (-math.log(1 - weight) - weight) / 4
        weights, weighted, price = weights + weight, weighted + weight * x, price + 4 * (x - mean) ** 2 * psi
        best = min(best, 2 * (weighted + log + price) / weights - 1)
        seen += x
        mean = (0.5 + seen) / (t + 1)
        squares += (x - mean) ** 2
        variance = (0.25 + squares) / (t + 1)
    return best


def test_the_bound_is_that_of_the_theorem():
    d = np.random.default_rng(3).choice([1.0, 0.25, 0.0, -0.5], 60, p=[0.1, 0.2, 0.5, 0.2])
    assert plug_in_bound(d, 0.3) == pytest.approx(written_out(d, 0.3), abs=1e-12) and plug_in_bound(d, 0.3) < 0.6
    assert plug_in_bound(d[:1], 0.3) == 1.0


def test_the_inequality_for_a_fixed_number_is_that_of_its_paper_and_says_nothing_beyond_one():
    """Theorem 4 of arXiv 0907.3740 with the sample variance, for values whose range is 2."""
    n, variance, log = 50, 0.04, math.log(2 / 0.1)
    sample = variance * n / (n - 1)
    expected = 0.01 + math.sqrt(2 * sample * log / n) + 14 * log / (3 * (n - 1))
    assert bernstein_bound(0.01, variance, n, 0.1) == pytest.approx(expected, abs=1e-12) and expected < 1
    assert {bernstein_bound(*known, 0.1) for known in ((0.0, 0.0, 1), (0.9, 1.0, 2), (0.9, 1.0, 20))} == {1.0}
