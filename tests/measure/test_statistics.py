"""Paired statistics know which prompts belong together."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from gistgate.core.utils import UserError
from gistgate.measure.statistics import (
    Interval,
    accuracy_difference,
    ratio_of_pairs,
    ratio_of_rates,
    ratio_of_sums,
)


def test_the_interval_of_the_accuracy_difference_is_the_paired_one():
    """3 % losses and 1 % gains among 1000: a standard error of 0.63 points, whatever the accuracy
    itself.
    """
    strict = np.array([1.0] * 30 + [0.0] * 10 + [1.0, 0.0] * 480)
    loose = np.array([0.0] * 30 + [1.0] * 10 + [1.0, 0.0] * 480)
    found = accuracy_difference(loose, strict, level=0.9)
    assert found.mean == pytest.approx(-0.02)
    ends = -0.02 - 1.645 * 0.0063, -0.02 + 1.645 * 0.0063
    assert (found.low, found.high) == pytest.approx(ends, abs=0.0015)
    assert accuracy_difference(loose, strict, level=0.95).low < found.low
    assert found == accuracy_difference(loose, strict, level=0.9)


def test_equal_outcomes_leave_no_interval():
    assert accuracy_difference([1, 0, 1], [1, 0, 1]) == Interval(0.0, 0.0, 0.0)


def test_a_ratio_of_sums_weighs_long_prompts_more_and_resamples_pairs():
    """A method that is twice as fast on every prompt has no uncertainty, however much the prompts
    differ.
    """
    seconds = np.random.default_rng(0).uniform(1, 20, 50)
    found = ratio_of_sums(seconds, seconds / 2)
    assert found == ratio_of_sums(2 * seconds, seconds)
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))
    noisy = ratio_of_sums([10.0, 1.0, 2.0], [5.0, 1.0, 4.0], seed=3)
    assert noisy.mean == pytest.approx(1.3) and noisy.low < 1.3 < noisy.high


def test_a_rate_does_not_reward_short_answers():
    """Half the tokens in half the time are no faster."""
    times, tokens = [4.0, 2.0], [40, 20]
    halves = ratio_of_rates(times, tokens, [2.0, 1.0], [20, 10])
    assert (halves.mean, halves.low, halves.high) == pytest.approx((1.0, 1.0, 1.0))
    assert ratio_of_rates(times, tokens, [1.0, 3.0], [10, 90]).mean == pytest.approx(100 / 4 / 10)
    with pytest.raises(UserError, match="positive seconds and tokens"):
        ratio_of_rates(times, tokens, [1.0, 1.0], [10, 0])


def test_a_ratio_of_pairs_has_the_t_interval_of_its_logarithm():
    found = ratio_of_pairs([2.0, 8.0, 4.0], [1.0, 1.0, 1.0])
    expected = np.exp(ttest_1samp(np.log([2.0, 8.0, 4.0]), 0).confidence_interval(0.95))
    assert found.mean == pytest.approx(4.0)
    assert (found.low, found.high) == pytest.approx(tuple(expected))
