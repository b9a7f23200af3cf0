"""The exact bound is wrong at most as often as it says in every world, and other scores get a bound
that says so.
"""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, multinomial

from gistgate.certificates import bounds
from gistgate.certificates.bounds import (
    BETTING,
    EXACT,
    GAMMA,
    exact_bound,
    hoeffding_bentkus,
    p_value,
    upper_bound,
)

ALPHA = 0.05


def outcomes(losses: int, gains: int, n: int) -> np.ndarray:
    """Differences d = strict - loose of n prompts."""
    return np.r_[np.ones(losses), -np.ones(gains), np.zeros(n - losses - gains)]


def tables(n: int) -> list[tuple[int, int]]:
    """All tables of n pairs, as (losses, gains)."""
    return [(losses, gains) for losses in range(n + 1) for gains in range(n + 1 - losses)]


def largest_probability(chosen: list[tuple[int, int]], n: int, differences: list[float]) -> float:
    """Largest probability of these tables over worlds with such a difference and any
    discordance.
    """
    counts = np.array([(losses, gains, n - losses - gains) for losses, gains in chosen])
    found = [0.0]
    for difference in differences:
        for discordance in np.linspace(difference, 1, 60):
            p_loss, p_gain = (discordance + difference) / 2, (discordance - difference) / 2
            found.append(multinomial.pmf(counts, n, [p_loss, p_gain, 1 - discordance]).sum())
    return max(found)


@pytest.mark.parametrize(
    "losses, gains, n, difference", [(3, 5, 40, 0.1), (0, 4, 30, 0.05), (9, 0, 50, 0.02)]
)
def test_the_nuisance_in_the_statistic_maximises_the_likelihood(losses, gains, n, difference):
    """The closed form is compared with a search over p_gain under p_loss = p_gain + difference."""

    def loss(p_gain: float) -> float:
        rest = 1 - 2 * p_gain - difference
        return -(
            losses * np.log(p_gain + difference)
            + gains * np.log(p_gain)
            + (n - losses - gains) * np.log(rest)
        )

    p_gain = minimize_scalar(
        loss, bounds=(1e-9, (1 - difference) / 2 - 1e-9), options={"xatol": 1e-10}
    ).x
    variance = n * (2 * p_gain + difference - difference**2)
    expected = (losses - gains - n * difference) / np.sqrt(variance)
    assert bounds.score(losses, gains, n, difference) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("difference", [0.001, 0.02, 0.1, 0.5, 0.9])
def test_more_losses_among_the_same_discordant_pairs_never_look_better(difference):
    """The boundary of the hypothesis is its worst case only if this holds."""
    for discordant in range(1, 61):
        losses = np.arange(discordant + 1)
        assert (np.diff(bounds.score(losses, discordant - losses, 60, difference)) > 0).all()


@pytest.mark.parametrize("n, budget", [(30, 0.05), (30, 0.1), (30, 0.3), (60, 0.05)])
def test_a_budget_is_certified_wrongly_at_most_as_often_as_promised(n, budget):
    """Full enumeration: in no world whose loss is the budget or more do the certifying tables weigh
    more than alpha.
    """
    certifying = [table for table in tables(n) if p_value(*table, n, budget) <= ALPHA]
    level = largest_probability(certifying, n, [budget, budget + 0.02, budget + 0.2])
    assert 0.5 * ALPHA < level <= ALPHA


def test_bounds_cover_the_true_loss():
    """Full enumeration: in no world does the bound fall short of the loss more often than alpha."""
    n = 14
    bound = {table: exact_bound(*table, n, ALPHA) for table in tables(n)}
    for true in (0.02, 0.1, 0.25, 0.5):
        short = [table for table, value in bound.items() if value < true]
        assert largest_probability(short, n, [true]) <= ALPHA


def test_the_discordance_is_searched_finely_enough(monkeypatch):
    """Ten times as many discordances find no worse world."""
    found = p_value.__wrapped__(6, 4, 200, 0.04)
    monkeypatch.setattr(bounds, "NUISANCE_POINTS", 480)
    assert p_value.__wrapped__(6, 4, 200, 0.04) == pytest.approx(found, rel=1e-3)


def test_published_margins():
    """1000 problems, 25 losses and 25 gains: a little above the normal margin of 1.16 points, at
    most 1.21.
    """
    assert 0.0116 < exact_bound(25, 25, 1000, ALPHA) <= 0.0121
    assert 2 * hoeffding_bentkus(0.5, 1000, ALPHA) - 1 == pytest.approx(0.067, abs=0.001)


@pytest.mark.parametrize(
    "losses, gains, n, expected",
    [
        (30, 0, 30, 1.0),
        (0, 30, 30, 0.0),
        (1, 0, 1, 1.0),
        (0, 0, 1, 0.9501),
    ],  # without data nothing is certain
)
def test_extreme_tables_have_sensible_bounds(losses, gains, n, expected):
    assert exact_bound(losses, gains, n, ALPHA) == pytest.approx(expected, abs=1e-4)


def test_the_harm_bound_is_valid_and_not_far_from_exact_and_without_a_harmed_prompt_the_exact_one():
    """Against the exact binomial bound of 10 harmed prompts in 500, 3.37 %; (1 - rate) ** n is
    alpha at the exact.
    """
    assert 0.0337 < hoeffding_bentkus(0.02, 500, ALPHA) < 0.045
    assert hoeffding_bentkus(1.0, 10, ALPHA) == 1.0
    assert hoeffding_bentkus(0.0, 60, ALPHA) == pytest.approx(1 - ALPHA ** (1 / 60), abs=1e-8)
    for ternary in (True, False):  # gains do not lower it
        bound = upper_bound(outcomes(10, 30, 500), 0.95, ternary)
        assert bound.harm == pytest.approx(hoeffding_bentkus(10 / 500, 500, ALPHA))


def test_an_exact_bound_keeps_a_budget_only_if_its_own_test_rejects():
    """The bound is searched with a finite resolution, so the test at the budget itself has the last
    word.
    """

    def bound(value: float, kind: str) -> bounds.Bound:
        return bounds.Bound(
            value, kind, 0.95, n=100, mean=0.03, losses=3, gains=0, spread=0.03, harm=0.1
        )

    assert p_value(3, 0, 100, 0.05) > ALPHA > p_value(3, 0, 100, 0.2)
    assert not bound(0.04, EXACT).within(0.05) and bound(0.04, BETTING).within(0.05)
    assert bound(0.2, EXACT).within(0.2) and not bound(0.21, EXACT).within(0.2)


def test_scores_between_right_and_wrong_get_a_wider_bound_that_says_so():
    d = np.resize([0.5, -0.5, 0.0, 0.0], 1000)
    bound = upper_bound(d, 0.95)
    assert bound.kind == BETTING
    assert bound.value > upper_bound(np.sign(d) * (np.arange(1000) % 20 < 2), 0.95).value
    assert upper_bound(outcomes(3, 2, 100), 0.95).kind == EXACT
    assert upper_bound(outcomes(3, 2, 100), 0.95, ternary=False).kind == BETTING


@pytest.mark.parametrize("discordant, n", [(0, 30), (3, 30), (11, 40), (30, 30), (1, 500)])
def test_the_region_is_the_exact_interval_of_the_discordance(discordant, n):
    interval = binomtest(discordant, n).proportion_ci(1 - GAMMA, method="exact")
    assert bounds.discordance_region(discordant, n) == pytest.approx(
        (interval.low, interval.high), abs=1e-6
    )


def slow_p_value(losses: int, gains: int, n: int, difference: float) -> float:
    """All tables of n pairs, whose probabilities are summed at 400 discordances of the region."""
    counts = np.array([(*table, n - sum(table)) for table in tables(n)])
    extreme = (
        bounds.score(*counts.T[:2], n, difference)
        <= bounds.score(losses, gains, n, difference) + 1e-9
    )
    low, high = bounds.discordance_region(losses + gains, n)
    found = [0.0]
    for discordance in np.linspace(max(low, difference), high, 400):
        p_loss, p_gain = (discordance + difference) / 2, (discordance - difference) / 2
        found.append(
            multinomial.pmf(counts[extreme], n, [p_loss, max(p_gain, 0.0), 1 - discordance]).sum()
        )
    return max(found) + GAMMA


@pytest.mark.parametrize(
    "losses, gains, n, difference",
    [
        (0, 0, 12, 0.2),
        (1, 0, 15, 0.3),
        (1, 2, 20, 0.1),
        (3, 1, 20, 0.4),
        (5, 6, 20, 0.15),
        (0, 8, 20, 0.05),
    ],
)
def test_the_p_value_is_the_largest_probability_of_tables_as_extreme(losses, gains, n, difference):
    assert p_value(losses, gains, n, difference) == pytest.approx(
        slow_p_value(losses, gains, n, difference), rel=2e-3
    )


@pytest.mark.parametrize("losses, gains, n", [(2, 1, 60), (1, 1, 40), (9, 2, 80)])
def test_the_bound_is_the_edge_of_what_is_not_rejected(losses, gains, n):
    bound = exact_bound(losses, gains, n, ALPHA)
    assert (
        p_value(losses, gains, n, bound + bounds.RESOLUTION)
        <= ALPHA
        < p_value(losses, gains, n, bound - 3 * bounds.RESOLUTION)
    )
    assert bound == pytest.approx(round(bound, 6), abs=1e-12)
