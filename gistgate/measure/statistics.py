"""Statistics of two methods that ran on the same prompts: claims on the test split, not certificates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, bootstrap
from torch import Tensor

from gistgate.core.utils import UserError

# ---- Ratios with intervals where only torch is installed.


RESAMPLES_INTERVALS = 9999
"""Bootstrap resamples, as many as the pipeline's reports draw."""
Columns = Mapping[str, Tensor]
"""What was measured on each prompt, by name: [R, N], one row for each resample."""


@dataclass(frozen=True)
class Ratio:
    """A figure, such as how many times faster, with its two-sided bootstrap interval."""

    mean: float
    """The figure of what was seen."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def as_dict(self) -> dict[str, float]:
        """Plain JSON."""
        return asdict(self)


def ratio_of_sums_intervals(
    reference: Sequence[float], own: Sequence[float], level: float = 0.9, seed: int = 0
) -> Ratio:
    """sum(reference) / sum(own) over the same batches [N], with a paired percentile bootstrap interval.

    `gistgate.measure.statistics` does the same with scipy, which a machine with a GPU need not have.

    Raises:
        UserError: the seconds are not paired, or not positive.
    """
    if len(reference) != len(own) or not own or min(*reference, *own) <= 0:
        raise UserError("A speed ratio needs positive seconds for every batch on both sides. Measure again.")
    columns = {"reference": reference, "own": own}
    return over_prompts(lambda seen: {"": seen["reference"].sum(-1) / seen["own"].sum(-1)}, columns, level, seed)[""]


def over_prompts(
    figures: Callable[[Columns], Columns], columns: Mapping[str, Sequence[float]], level: float = 0.9, seed: int = 0
) -> dict[str, Ratio]:
    """Every figure [R] of these columns [N], with its percentile bootstrap interval over prompts."""
    seen = {name: torch.tensor(column, dtype=torch.float64)[None] for name, column in columns.items()}
    num = next(iter(seen.values())).shape[1]
    drawn = torch.randint(num, (RESAMPLES_INTERVALS, num), generator=torch.Generator().manual_seed(seed))
    resampled = figures({name: column[0, drawn] for name, column in seen.items()})
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return {
        name: Ratio(float(value), *resampled[name].quantile(ends).tolist()) for name, value in figures(seen).items()
    }


Array = NDArray[np.float64]

RESAMPLES = 9999
"""Bootstrap resamples."""
BATCH = 500
"""Resamples held in memory at once."""


@dataclass(frozen=True)
class Interval:
    """A value and its two-sided bootstrap interval."""

    mean: float
    """The value on the prompts that were seen."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def as_dict(self) -> dict[str, float]:
        """Plain JSON."""
        return asdict(self)


def mcnemar(loose: ArrayLike, strict: ArrayLike) -> float:
    """Two-sided exact McNemar p-value for equal accuracy of `loose [N]` and `strict [N]`, scores 0 or 1.

    1.0 when no pair is discordant. Scores between 0 and 1 count by which of the two is larger (a sign test).
    """
    difference = pairs(loose, strict)
    losses, gains = int((difference < 0).sum()), int((difference > 0).sum())
    return float(binomtest(losses, losses + gains, 0.5).pvalue) if losses + gains else 1.0


def accuracy_difference(
    loose: ArrayLike, strict: ArrayLike, level: float = 0.9, seed: int = 0, method: Literal["BCa", "percentile"] = "BCa"
) -> Interval:
    """mean(loose - strict) with its paired bootstrap interval over prompts; negative means that looseness costs."""
    return interval(np.mean, pairs(loose, strict), level=level, seed=seed, method=method)


def ratio_of_sums(numerator: ArrayLike, denominator: ArrayLike, level: float = 0.9, seed: int = 0) -> Interval:
    """sum(numerator) / sum(denominator) over the same prompts, with a percentile bootstrap interval over prompts.

    For speed the numerator holds the reference's seconds [N], the denominator the method's: above 1 is faster.
    Repeats of a prompt are added up first, since they are not independent.

    Raises:
        UserError: the seconds are not paired, or not positive.
    """
    a, b = paired(numerator, denominator)
    if not ((a > 0).all() and (b > 0).all()):
        raise UserError("A speed ratio needs positive seconds for every prompt. Run the benchmark again.")
    return interval(lambda x, y, axis: x.sum(axis) / y.sum(axis), a, b, level=level, seed=seed)


def ratio_of_rates(
    times: ArrayLike, tokens: ArrayLike, own_times: ArrayLike, own_tokens: ArrayLike, **more: Any
) -> Interval:
    """Tokens per second of one way of decoding, divided by those of a reference, with its interval over prompts.

    Rounding, and looseness, make answers longer or shorter, so that seconds alone do not say how fast tokens come.

    Args:
        times: seconds [N] of the reference; `own_times` are those of the way itself.
        tokens: new tokens [N] of the reference; `own_tokens` likewise.
        more: level and seed of the interval.

    Raises:
        UserError: the columns are not paired, or not positive.
    """
    columns = [*paired(times, tokens), *paired(own_times, own_tokens)]
    if len({len(column) for column in columns}) > 1 or not all((column > 0).all() for column in columns):
        raise UserError(
            "A speed per token needs positive seconds and tokens for every prompt. Run the benchmark again."
        )
    return interval(lambda t, n, s, m, axis: t.sum(axis) * m.sum(axis) / (n.sum(axis) * s.sum(axis)), *columns, **more)


def interval(
    figure: Callable[..., Any],
    *columns: Array,
    level: float = 0.9,
    seed: int = 0,
    method: Literal["BCa", "percentile"] = "percentile",
) -> Interval:
    """A figure of columns [N] with its bootstrap interval; rows are drawn as a whole, so columns stay paired.

    Args:
        figure: takes the columns and `axis`, as numpy's reductions do.
    """
    value = float(figure(*columns, axis=-1))
    if all(np.ptp(column) == 0 for column in columns):  # every resample is the same
        return Interval(value, value, value)
    ends = bootstrap(
        columns,
        figure,
        n_resamples=RESAMPLES,
        batch=BATCH,
        paired=True,
        vectorized=True,
        confidence_level=level,
        method=method,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(ends.low), float(ends.high))


def pairs(loose: ArrayLike, strict: ArrayLike) -> Array:
    """loose - strict [N]."""
    a, b = paired(loose, strict)
    return a - b


def paired(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Two arrays of equal length; UserError when they are empty, of different length or not finite."""
    x, y = np.asarray(a, float).ravel(), np.asarray(b, float).ravel()
    if len(x) != len(y) or not len(x):
        raise UserError(
            f"Paired statistics need the same prompts on both sides, but there are {len(x)} and {len(y)}. "
            "Run both methods on one split."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("Paired statistics met a value that is not a number. Run the method again.")
    return x, y
