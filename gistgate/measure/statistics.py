"""Bootstrap intervals for two methods that ran on the same prompts: claims about them, not
certificates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    a, b = paired(loose, strict)
    return interval(np.mean, a - b, level=level, seed=seed, is_corrected=True)


def ratio_of_sums(
    numerator: ArrayLike, denominator: ArrayLike, level: float = 0.9, seed: int = 0
) -> Interval:
    """sum(numerator) / sum(denominator) over the same prompts [N], with a percentile bootstrap
    interval over prompts.

    For speed the numerator holds the reference's seconds, repeats of a prompt added up; above 1 is
    faster.
    """
    columns = paired(numerator, denominator)
    assert all((column > 0).all() for column in columns), "every prompt takes time"
    return interval(lambda x, y, axis: x.sum(axis) / y.sum(axis), *columns, level=level, seed=seed)


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
    columns = [*paired(times, tokens), *paired(own_times, own_tokens)]
    if not all((column > 0).all() for column in columns):
        raise UserError(
            "A speed per token needs positive seconds and tokens for every prompt. Repeat the"
            " benchmark."
        )

    def ratio(t: Array, n: Array, s: Array, m: Array, axis: int) -> Any:
        return t.sum(axis) * m.sum(axis) / (n.sum(axis) * s.sum(axis))

    return interval(ratio, *columns, level=level, seed=seed)


def interval(
    figure: Figure,
    *columns: Array,
    level: float = 0.9,
    seed: int = 0,
    is_corrected: bool = False,
) -> Interval:
    """A figure of columns [N] with its percentile bootstrap interval; rows are drawn as a whole, so
    columns stay paired. `is_corrected` asks for the ends of BCa.
    """
    value = float(figure(*columns, axis=-1))
    if all(np.ptp(column) == 0 for column in columns):  # every resample is the same
        return Interval(value, value, value)
    num = len(columns[0])
    rng = np.random.default_rng(seed)
    drawn = []
    for first in range(0, RESAMPLES, AT_ONCE):
        rows = rng.integers(0, num, (min(AT_ONCE, RESAMPLES - first), num))
        drawn.append(figure(*(column[rows] for column in columns), axis=-1))
    resampled = np.concatenate(drawn)
    tail = (1 - level) / 2
    ends = [tail, 1 - tail]
    if is_corrected:
        ends = corrected(ends, figure, columns, value, resampled)
    low, high = (float(np.percentile(resampled, 100 * end)) for end in ends)
    return Interval(value, low, high)


def corrected(
    ends: list[float], figure: Figure, columns: tuple[Array, ...], value: float, resampled: Array
) -> list[float]:
    """The ends of an interval, in shares of the resamples, corrected for bias and acceleration
    (BCa: B. Efron, Journal of the American Statistical Association 82 (1987) 171).
    """
    from scipy.special import ndtr, ndtri  # a machine that only decodes need not have scipy

    num = len(columns[0])
    bias = ndtri(((resampled < value).mean() + (resampled <= value).mean()) / 2)

    def left_out(row: int) -> Any:
        return figure(*(np.delete(column, row) for column in columns), axis=-1)

    without = np.array([left_out(row) for row in range(num)])
    influence = (num - 1) * (without.mean() - without)
    acceleration = (influence**3).sum() / num**3 / (6 * ((influence**2).sum() / num**2) ** 1.5)
    shifted = [bias + ndtri(end) for end in ends]
    return [float(ndtr(bias + end / (1 - acceleration * end))) for end in shifted]


def paired(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Two arrays [N] of the same prompts."""
    x = np.asarray(a, float).ravel()
    y = np.asarray(b, float).ravel()
    assert len(x) == len(y) > 0 and np.isfinite([x, y]).all(), (
        "both sides need numbers for the same prompts"
    )
    return x, y
