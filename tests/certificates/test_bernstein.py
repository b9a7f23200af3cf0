"""The plug-in bound holds after every prompt, and is sharper than the fixed-n inequality."""

from itertools import product

import numpy as np
import pytest

from gistgate.certificates.bernstein import bernstein_bound, bernstein_sequence
from gistgate.errors import UserError

ALPHA = 0.05


def test_all_outcomes_of_a_few_prompts_together_miss_the_loss_rarely():
    """Full enumeration of 8 prompts, at a level loose enough that some outcomes do miss."""
    values, probability = np.array([1.0, 0.5, -1.0]), np.array([0.85, 0.1, 0.05])
    true, alpha = float(values @ probability), 0.6
    index = np.array(list(product(range(3), repeat=8)))
    short = [bernstein_sequence(d, alpha)[-1] < true for d in values[index]]
    assert 0 < probability[index].prod(-1)[short].sum() <= alpha


@pytest.mark.parametrize("planned", [None, 1000])
def test_the_running_bound_covers_the_loss(planned):
    """The last value is the smallest so far, so it misses wherever any bound along the way does."""
    d = np.random.default_rng(4).choice([1.0, 0.25, 0.0, -0.5], (400, 1000), p=[0.02, 0.1, 0.78, 0.1])
    last = np.array([bernstein_sequence(row, ALPHA, planned)[-1] for row in d])
    assert (last >= 0.02 + 0.025 - 0.05).mean() >= 0.95
    assert last.mean() < 0.03


def test_bounds_never_rise_and_start_without_knowledge():
    bounds = bernstein_sequence(np.random.default_rng(0).choice([0.5, 0.0, -0.5], 300), ALPHA)
    assert len(bounds) == 300
    assert bounds[0] == 1.0
    assert (np.diff(bounds) <= 0).all()


def test_the_future_does_not_change_the_past():
    d = np.random.default_rng(1).uniform(-1, 1, 200)
    other = np.r_[d[:100], np.ones(100)]
    assert (bernstein_sequence(d, ALPHA)[:100] == bernstein_sequence(other, ALPHA)[:100]).all()
    assert (bernstein_sequence(d, ALPHA, 200)[:100] == bernstein_sequence(other, ALPHA, 200)[:100]).all()


def test_it_is_sharper_than_the_inequality_for_a_fixed_number_of_prompts():
    d = np.random.default_rng(2).permutation(np.resize([0.5, -0.5, *[0.0] * 8], 1000))
    assert d.mean() < bernstein_sequence(d, ALPHA, 1000)[-1] < bernstein_bound(0.0, float(d.var()), 1000, ALPHA)


def test_more_prompts_and_less_confidence_mean_a_smaller_bound():
    d = np.random.default_rng(2).permutation(np.resize([0.5, -0.5, *[0.0] * 8], 4000))
    assert bernstein_sequence(d, ALPHA)[-1] < bernstein_sequence(d[:1000], ALPHA)[-1]
    assert bernstein_sequence(d, 0.2)[-1] < bernstein_sequence(d, ALPHA)[-1] < bernstein_sequence(d, 0.01)[-1]


def test_no_prompt_is_no_bound():
    with pytest.raises(UserError, match="at least one prompt"):
        bernstein_sequence([], ALPHA)
