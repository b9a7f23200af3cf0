"""The exact test of paired right-or-wrong scores against a slow computation of what it says it computes."""

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial

from gistgate.certificates.bounds import GAMMA, RESOLUTION, discordance_region, exact_bound, p_value, rejected, score


@pytest.mark.parametrize("discordant, n", [(0, 30), (3, 30), (11, 40), (30, 30), (1, 500)])
def test_the_region_is_the_exact_interval_of_the_discordance(discordant, n):
    interval = binomtest(discordant, n).proportion_ci(1 - GAMMA, method="exact")
    assert discordance_region(discordant, n) == pytest.approx((interval.low, interval.high), abs=1e-6)


def slow_p_value(losses: int, gains: int, n: int, difference: float) -> float:
    """All tables of n pairs, whose probabilities are summed at 400 discordances of the region."""
    tables = np.array([(b, c, n - b - c) for b in range(n + 1) for c in range(n + 1 - b)])
    extreme = score(tables[:, 0], tables[:, 1], n, difference) <= score(losses, gains, n, difference) + 1e-9
    low, high = discordance_region(losses + gains, n)
    found = [0.0]
    for discordance in np.linspace(max(low, difference), high, 400):
        p_loss, p_gain = (discordance + difference) / 2, (discordance - difference) / 2
        found.append(multinomial.pmf(tables[extreme], n, [p_loss, max(p_gain, 0.0), 1 - discordance]).sum())
    return max(found) + GAMMA


@pytest.mark.parametrize(
    "losses, gains, n, difference",
    [(0, 0, 12, 0.2), (1, 0, 15, 0.3), (1, 2, 20, 0.1), (3, 1, 20, 0.4), (5, 6, 20, 0.15), (0, 8, 20, 0.05)],
)
def test_the_p_value_is_the_largest_probability_of_tables_as_extreme(losses, gains, n, difference):
    assert p_value(losses, gains, n, difference) == pytest.approx(slow_p_value(losses, gains, n, difference), rel=2e-3)


def test_without_a_discordance_that_fits_only_the_error_of_the_region_is_left():
    """No table of 400 equal pairs is compatible with a difference of a half."""
    assert p_value(0, 0, 400, 0.5) == GAMMA


@pytest.mark.parametrize("losses, gains, n", [(2, 1, 60), (1, 1, 40), (9, 2, 80)])
def test_the_bound_is_the_edge_of_what_is_not_rejected(losses, gains, n):
    bound = exact_bound(losses, gains, n, 0.05)
    assert rejected(losses, gains, n, bound + RESOLUTION, 0.05)
    assert not rejected(losses, gains, n, bound - 3 * RESOLUTION, 0.05)
    assert bound == pytest.approx(round(bound, 6), abs=1e-12)
