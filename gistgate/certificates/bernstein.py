"""Empirical Bernstein bounds for scores in [0, 1] that take more values than right and wrong.

The predictable plug-in form (arXiv 2010.09686, theorem 2) certifies. It chooses the weight of a prompt from the prompts
before it, so it holds after every prompt at once. Tuned to a planned number of prompts it is sharper than the form for
a fixed number (arXiv 0907.3740), whose correction for the estimated variance is larger; predictions use that one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gistgate.certificates.differences import checked
from gistgate.certificates.tango import Array

BERNSTEIN = "empirical Bernstein (Maurer-Pontil)"
PLUG_IN = "empirical Bernstein (predictable plug-in)"
LARGEST_WEIGHT = 0.75
"""Weights stay below 1, where the inequality breaks down."""


def bernstein_sequence(differences: ArrayLike, alpha: float, planned: int | None = None) -> Array:
    """Upper bounds on mean(d) after each of `differences [N]`, all of them true at once with probability 1 - alpha.

    Args:
        planned: number of prompts after which the bound shall be sharpest; None keeps it sharp at all of them.
    """
    x = (1 + checked(differences)) / 2  # the theorem speaks of [0, 1]
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + x.cumsum()) / (t + 1)
    variance = (0.25 + ((x - mean) ** 2).cumsum()) / (t + 1)
    mean_before, variance_before = np.r_[0.5, mean[:-1]], np.r_[0.25, variance[:-1]]
    spread_over = t * np.log1p(t) if planned is None else planned
    weight = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (variance_before * spread_over)), LARGEST_WEIGHT)
    price = (x - mean_before) ** 2 * (-np.log1p(-weight) - weight)  # 4 v psi(weight) of the paper
    bound = ((weight * x).cumsum() + math.log(1 / alpha) + price.cumsum()) / weight.cumsum()
    return np.minimum.accumulate(np.clip(2 * bound - 1, -1.0, 1.0))


def bernstein_bound(mean: float, variance: float, n: int, alpha: float) -> float:
    """Upper bound on the mean of n values in [-1, 1] (arXiv 0907.3740, theorem 4, range 2)."""
    if n < 2:
        return 1.0
    log = math.log(2 / alpha)
    sample_variance = max(variance, 0.0) * n / (n - 1)
    return min(1.0, mean + math.sqrt(2 * sample_variance * log / n) + 2 * 7 * log / (3 * (n - 1)))
