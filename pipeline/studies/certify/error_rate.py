"""How often the exact bound is wrong on the boundary, by summing probabilities instead of drawing."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from gistgate.certificates.tango import p_value

UNLIKELY = 1e-9
"""Numbers of gains rarer than this on either side are left out."""


def certified_probability(outcomes: ArrayLike, budget: float, confidence: float) -> float:
    """Probability that as many prompts as `outcomes [N]`, drawn from their distribution, certify `budget`.

    Right-or-wrong outcomes only. At a fixed number of gains, fewer losses never make a certificate harder, so the most
    losses that still certify are found by halving.
    """
    d = np.asarray(outcomes)
    n, p_loss, p_gain = len(d), float((d > 0).mean()), float((d < 0).mean())
    total = 0.0
    for gains in range(int(binom.ppf(UNLIKELY, n, p_gain)), int(binom.isf(UNLIKELY, n, p_gain)) + 1):
        most = most_losses(gains, n, budget, confidence)
        total += binom.pmf(gains, n, p_gain) * binom.cdf(most, n - gains, p_loss / (1 - p_gain))
    return float(total)


def most_losses(gains: int, n: int, budget: float, confidence: float) -> int:
    """Most losses beside so many gains that certify the budget; -1 where not even none does."""

    def fails(losses: int) -> bool:
        return p_value(losses, gains, n, budget) > 1 - confidence

    reach = min(n - gains, gains + int(n * budget)) + 1  # an observed loss above the budget certifies nothing
    return bisect_left(range(reach), True, key=fails) - 1
