"""Tango's score statistic for a paired difference of proportions, and what is exact about it.

n pairs fall into losses (strict right, loose wrong), gains (the reverse) and the rest. With probabilities p_loss and
p_gain, `difference` = p_loss - p_gain is what a budget limits, and `discordance` = p_loss + p_gain is the nuisance.
Statistic: T. Tango, Statistics in Medicine 17 (1998) 891. Region for the nuisance: R. L. Berger and D. D. Boos,
Journal of the American Statistical Association 89 (1994) 1012.

Axis letters: M numbers of discordant pairs, D discordances.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom

Array = NDArray[np.float64]

GAMMA = 1e-4
"""Probability with which the true discordance lies outside its region; added to every p-value."""
TAIL = 1e-10
"""Mass of numbers of discordant pairs that is not enumerated; added to every p-value."""
TIE = 1e-9
"""Statistics closer than this count as equal, so that rounding cannot drop a table from the tail."""
NUISANCE_POINTS = 48
"""Discordances at which the tail is evaluated; half as many refine around the largest."""
SCAN_POINTS = 12
"""Differences above the found bound that are looked at, because the p-value is not quite monotone."""
RESOLUTION = 1e-6
"""Bounds are rounded up to multiples of this."""


def score(losses: ArrayLike, gains: ArrayLike, n: int, difference: float) -> Array:
    """Tango's statistic of tables `losses [...]`, `gains [...]` of n pairs under p_loss - p_gain = `difference`.

    Negative where fewer losses were seen than the difference predicts. `difference` lies in (0, 1).
    """
    b, c = np.asarray(losses, float), np.asarray(gains, float)
    # p_gain under the constraint is the larger root of 2n x^2 + Bx - C = 0, in the form that cancels nothing.
    B = (2 * n - b + c) * difference - b - c
    C = c * difference * (1 - difference)
    root = np.sqrt(B * B + 8 * n * C)
    p_gain = np.where(B > 0, 2 * C / np.where(B > 0, B + root, 1.0), (root - B) / (4 * n))
    variance = n * (2 * p_gain + difference * (1 - difference))
    return np.asarray((b - c - n * difference) / np.sqrt(variance))


def discordance_region(discordant: int, n: int) -> tuple[float, float]:
    """Clopper-Pearson interval that misses the true discordance with probability GAMMA at most."""
    low = beta.ppf(GAMMA / 2, discordant, n - discordant + 1) if discordant else 0.0
    high = beta.isf(GAMMA / 2, discordant + 1, n - discordant) if discordant < n else 1.0
    return float(low), float(high)


@lru_cache(maxsize=1 << 16)
def p_value(losses: int, gains: int, n: int, difference: float) -> float:
    """P-value of H0: p_loss - p_gain >= `difference` (in (0, 1)); small when so few losses speak against it.

    The largest probability, over the discordances of the region, of a table at least as far below `difference` as
    the one seen, plus what region and enumeration leave out. Among a fixed number of discordant pairs the statistic
    grows with the losses, so the boundary of H0 is its worst case.
    """
    low, high = discordance_region(losses + gains, n)
    low = max(low, difference)
    if low > high:
        return GAMMA
    m_M = np.arange(binom.ppf(TAIL / 2, n, low), binom.isf(TAIL / 2, n, high) + 1)
    limit = float(score(losses, gains, n, difference)) + TIE
    most_M = largest_losses(m_M, n, difference, limit)
    angles_D = np.linspace(np.arcsin(np.sqrt(low)), np.arcsin(np.sqrt(high)), NUISANCE_POINTS)
    coarse_D = tail(m_M, most_M, n, difference, np.sin(angles_D) ** 2)
    top = int(coarse_D.argmax())
    near_D = np.linspace(angles_D[max(top - 1, 0)], angles_D[min(top + 1, len(angles_D) - 1)], NUISANCE_POINTS // 2)
    fine_D = tail(m_M, most_M, n, difference, np.sin(near_D) ** 2)
    return min(1.0, float(max(coarse_D.max(), fine_D.max())) + GAMMA + TAIL)


def largest_losses(m_M: Array, n: int, difference: float, limit: float) -> Array:
    """Most losses among m discordant pairs whose statistic stays within `limit` [M]; -1 where none does."""
    low_M, high_M = np.full(len(m_M), -1.0), m_M.copy()
    while (low_M < high_M).any():
        middle_M = np.ceil((low_M + high_M) / 2)
        within_M = score(middle_M, m_M - middle_M, n, difference) <= limit
        low_M, high_M = np.where(within_M, middle_M, low_M), np.where(within_M, high_M, middle_M - 1)
    return low_M


def tail(m_M: Array, most_M: Array, n: int, difference: float, discordance_D: Array) -> Array:
    """P(losses <= most of their number of discordant pairs) under p_loss - p_gain = `difference` [D]."""
    psi_D1 = np.maximum(discordance_D, difference)[:, None]
    loss_share_D1 = (psi_D1 + difference) / (2 * psi_D1)
    mass_DM = binom.pmf(m_M, n, psi_D1)
    return np.asarray((mass_DM * binom.cdf(most_M, m_M, loss_share_D1)).sum(-1))


@lru_cache(maxsize=4096)
def exact_bound(losses: int, gains: int, n: int, alpha: float) -> float:
    """One-sided upper confidence bound on p_loss - p_gain at confidence 1 - alpha, in [0, 1].

    The largest difference that `p_value` does not reject. A negative bound is given as 0.
    """
    mean = (losses - gains) / n
    low, high = max(mean, RESOLUTION), 1 - RESOLUTION
    if low >= high:
        return 1.0
    if rejected(losses, gains, n, low, alpha):
        return 0.0
    step = 1.0 / n
    while low + step < high and not rejected(losses, gains, n, low + step, alpha):
        low, step = low + step, 2 * step
    high = min(low + step, high)
    while high - low > RESOLUTION / 4:
        middle = (low + high) / 2
        low, high = (low, middle) if rejected(losses, gains, n, middle, alpha) else (middle, high)
    above: list[float] = np.linspace(high, min(high + 0.25 * (high - mean), 1 - RESOLUTION), SCAN_POINTS).tolist()
    last = max([high, *(x for x in above[1:] if not rejected(losses, gains, n, x, alpha))])
    return round(min(1.0, math.ceil(last / RESOLUTION) * RESOLUTION), 6)


def rejected(losses: int, gains: int, n: int, difference: float, alpha: float) -> bool:
    """Whether this table refutes a loss of `difference` or more."""
    return p_value(losses, gains, n, difference) <= alpha
