"""Bootstrap intervals for two methods that ran on the same prompts: claims about them, not
certificates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, t

from gistgate.core.utils import UserError

Array = NDArray[np.float64]
Figure = Callable[..., Any]
"""Takes columns and `axis`, as numpy's reductions do."""
RESAMPLES = 9999
AT_ONCE = 500
"""Resamples that are in memory at a time."""


@dataclass(frozen=True)
class Interval:
    """A figure of what was seen, with its two-sided bootstrap interval."""

    mean: float
    low: float
    high: float


def accuracy_difference(
    loose: ArrayLike, strict: ArrayLike, level: float = 0.9, seed: int = 0
) -> Interval:
    """mean(loose - strict) with its paired BCa bootstrap interval over prompts; negative means that
    looseness costs.
    """
    change = np.subtract(loose, strict, dtype=float)
    return interval(np.mean, change, level=level, seed=seed, method="BCa")


def ratio_of_sums(
    numerator: ArrayLike, denominator: ArrayLike, level: float = 0.9, seed: int = 0
) -> Interval:
    """sum(numerator) / sum(denominator) over the same prompts [N], with a percentile bootstrap
    interval over prompts.

    For speed the numerator holds the reference's seconds, repeats of a prompt added up; above 1 is
    faster.
    """

    def ratio(x: Array, y: Array, axis: int) -> Any:
        return x.sum(axis) / y.sum(axis)

    return interval(ratio, numerator, denominator, level=level, seed=seed)


def ratio_of_pairs(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.95) -> Interval:
    """Geometric mean of numerator / denominator over the same prompts [N], N at least 2, with the
    t interval of its logarithm, which few prompts do not make too short.
    """
    logs = np.log(np.divide(numerator, denominator))
    half = t.ppf((1 + level) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    middle, low, high = np.exp(logs.mean() + half * np.array([0.0, -1.0, 1.0])).tolist()
    return Interval(middle, low, high)


def ratio_of_rates(
    times: ArrayLike,
    tokens: ArrayLike,
    own_times: ArrayLike,
    own_tokens: ArrayLike,
    level: float = 0.9,
    seed: int = 0,
) -> Interval:
    """Tokens per second of one way of decoding, divided by those of a reference (`times` and
    `tokens` [N]).
    """
    columns = (times, tokens, own_times, own_tokens)
    if not all((np.asarray(column) > 0).all() for column in columns):
        raise UserError(
            "A speed per token needs positive seconds and tokens for every prompt. Repeat the"
            " benchmark."
        )

    def ratio(t: Array, n: Array, s: Array, m: Array, axis: int) -> Any:
        return t.sum(axis) * m.sum(axis) / (n.sum(axis) * s.sum(axis))

    return interval(ratio, *columns, level=level, seed=seed)


def interval(
    figure: Figure,
    *columns: ArrayLike,
    level: float,
    seed: int,
    method: Literal["percentile", "BCa"] = "percentile",
) -> Interval:
    """A figure of columns [N] with its bootstrap interval; rows are drawn as a whole, so columns
    stay paired.
    """
    arrays = [np.asarray(column, float) for column in columns]
    value = float(figure(*arrays, axis=-1))
    if all(np.ptp(column) == 0 for column in arrays):  # every resample is the same
        return Interval(value, value, value)
    ends = bootstrap(
        arrays,
        figure,
        n_resamples=RESAMPLES,
        batch=AT_ONCE,
        vectorized=True,
        paired=True,
        confidence_level=level,
        method=method,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(ends.low), float(ends.high))
