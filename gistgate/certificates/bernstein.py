"""Empirical Bernstein bound for scores in [0, 1] that are not just right or wrong, valid after every prompt.

The predictable plug-in form (arXiv 2010.09686, theorem 2) for d in [-1, 1]: the weight of a prompt is chosen from those
before it, so the bound holds however often one looks. Tuned to a planned number of prompts it is sharper than the
fixed-n inequality of `gistgate.certificates.bounds`, whose correction for the estimated variance is larger.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gistgate.certificates.bounds import checked
from gistgate.certificates.tango import Array

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
