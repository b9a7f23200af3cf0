"""Which settings of a rule go to certification: for every budget the loosest that is predicted to
keep it.

A spare slot tests a value between the headline's and the next looser one. Decoding is expensive, so
each measurement halves the open range of the variant that may still be the fastest at the headline
budget; the rest refine the others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression

from gistgate.certificates.bounds import Array, right_or_wrong
from gistgate.certificates.fixed_sequence import Stop
from gistgate.certificates.planning import confidence_of_test, would_certify

Keeps = Callable[[float, float, int, bool], bool]  # `Request.keeps` at one budget


@dataclass
class Curve:
    """Measurements of one variant at indices of its grid."""

    size: int  # values on the grid
    loss: dict[int, float] = field(
        default_factory=dict
    )  # mean of d = strict - loose score, by index
    spread: dict[int, float] = field(default_factory=dict)  # mean of d squared, by index
    tau: dict[int, float] = field(default_factory=dict)  # mean accepted length, by index
    seen: int = 0  # prompts of every measurement
    growth: float = math.inf  # largest growth of the mean length that a setting may show
    longer: dict[int, float] = field(
        default_factory=dict
    )  # the growth of the mean length, by index
    exact: bool = True  # whether all scores were right or wrong, so that the exact bound will serve

    def add(self, index: int, differences: Array, tau: float, longer: float = 0.0) -> None:
        """Take in a measurement of `differences [N]`."""
        self.longer[index] = longer
        self.loss[index] = float(differences.mean())
        self.spread[index] = float((differences**2).mean())
        self.tau[index] = tau
        self.seen = len(differences)
        self.exact &= right_or_wrong(differences)

    def kept(self, keeps: Keeps) -> list[int]:
        """Measured indices that are predicted to keep the budget: a prefix, since smooth losses
        never fall.
        """
        if not self.loss:
            return []
        indices = sorted(self.loss)
        losses = smooth(indices, self.loss)
        spreads = smooth(indices, self.spread)
        kept = (
            keeps(loss, spread, self.seen, self.exact) and self.longer[index] <= self.growth
            for index, loss, spread in zip(indices, losses, spreads, strict=True)
        )
        return [index for index, _ in takewhile(itemgetter(1), zip(indices, kept, strict=True))]

    def between(self, keeps: Keeps, chosen: Sequence[int]) -> list[int]:
        """A measured index between the loosest that keeps the budget and the next looser one
        chosen; at most one.
        """
        low, _ = self.open_range(keeps)
        high = min((index for index in chosen if index > low), default=low)
        inside = [index for index in sorted(self.loss) if low < index < high]
        return inside[(len(inside) - 1) // 2 :][:1]

    def open_range(self, keeps: Keeps) -> tuple[int, int]:
        """The loosest index known to keep the budget (-1: strict), and the strictest known not to
        (size: none).
        """
        kept = self.kept(keeps)
        return max(kept, default=-1), min(set(self.loss) - set(kept), default=self.size)

    def next(self, keeps: Keeps) -> int | None:
        """The unmeasured index that halves the open range; None when nothing is open."""
        low, high = self.open_range(keeps)
        return (low + high) // 2 if high - low > 1 else None

    def kept_tau(self, keeps: Keeps) -> float:
        """Largest tau measured within the budget; 0 where nothing is."""
        return max((self.tau[index] for index in self.kept(keeps)), default=0.0)

    def hope(self, keeps: Keeps) -> float:
        """Largest tau that may still be found within the budget: that of the first value known to
        be too loose.
        """
        _, high = self.open_range(keeps)
        if self.next(keeps) is None:
            return self.kept_tau(keeps)
        return max(self.tau[high], self.kept_tau(keeps)) if high in self.tau else math.inf


def smooth(indices: list[int], values: dict[int, float]) -> list[float]:
    """Values along the grid as the closest sequence that never falls and never is negative."""
    fitted = IsotonicRegression(y_min=0.0).fit_transform(
        indices, [values[index] for index in indices]
    )
    return [float(value) for value in np.atleast_1d(fitted)]


@dataclass(frozen=True)
class Setting:
    """One value of the knob together with one variant of the rule's other settings."""

    value: float | None  # the knob; None for a rule without one
    variant: dict[str, Any] = field(
        default_factory=dict
    )  # settings that override the method's fixed ones


Evaluate = Callable[[Setting], tuple[Array, float, float]]
"""Of the development prompts: differences [N], tau, and the growth of the mean length."""


@dataclass(frozen=True)
class Request:
    """What shall be certified, and how."""

    budgets: tuple[float, ...]  # largest mean losses, each a claim of its own
    confidence: float = 0.95  # probability with which each certificate holds
    n: int = 1000  # most calibration prompts to decode for a setting
    stop: Stop = "lost"  # when to leave a setting early
    settings: int = 3  # most settings to test behind the strictest
    # most settings to measure on development prompts, plus one for each variant behind the first
    evaluations: int = 6
    reserve: float = 1.0  # standard errors that the choice of settings leaves free below a budget
    growth: float | None = (
        None  # largest growth of the mean length, a claim beside each budget; None: any
    )
    headline: float | None = (
        None  # the budget that decides between variants; None takes the largest
    )

    def keeps(self, budget: float, loss: float, spread: float, seen: int, exact: bool) -> bool:
        """Whether calibration would certify the budget, less the reserve, at this loss and mean of
        d squared.
        """
        # One differing prompt more than was seen keeps few prompts without any from passing for
        # certainty.
        variance = (max(spread - loss**2, 0.0) * seen + 1) / (seen + 1)
        left = budget - self.reserve * math.sqrt(variance * (1 / self.n + 1 / seen))
        sure = confidence_of_test(self.stop, self.confidence, exact)
        return left > 0 and would_certify(self.n, left, sure, spread, loss, exact)

    @property
    def headline_budget(self) -> float:
        """The budget that decides between variants."""
        return max(self.budgets) if self.headline is None else self.headline


@dataclass(frozen=True)
class Selection:
    """The fixed sequence."""

    settings: list[Setting]  # from strict to loose; at least one
    measured: list[Setting]  # all settings that were measured, by variant, from strict to loose


def choose_settings(
    grid: Sequence[float], variants: Sequence[dict[str, Any]], evaluate: Evaluate, request: Request
) -> Selection:
    """The sequence of one variant over a `grid` from strict to loose; it begins with the strictest,
    measured or not.
    """
    limit = math.inf if request.growth is None else request.growth
    curves = [Curve(len(grid), growth=limit) for _ in variants]
    most = request.evaluations + len(variants) - 1
    main = request.headline_budget
    by_weight = [
        partial(request.keeps, budget) for budget in (main, *sorted(set(request.budgets) - {main}))
    ]
    headline = by_weight[0]  # behind it the small budgets before the large ones

    def hopeful() -> Iterator[tuple[int, int]]:
        """Where the largest tau may still hide, until none can beat the best one known."""
        while True:
            variant = max(range(len(curves)), key=lambda at: curves[at].hope(headline))
            if (index := curves[variant].next(headline)) is None:
                return
            yield variant, index

    def refining(variant: int) -> Iterator[tuple[int, int]]:
        """The open ranges of one variant, the widest first."""
        curve = curves[variant]
        while found := [one for one in by_weight if curve.next(one) is not None]:
            index = curve.next(max(found, key=lambda one: np.diff(curve.open_range(one))[0]))
            assert index is not None
            yield variant, index

    def measure(places: Iterator[tuple[int, int]]) -> None:
        for variant, index in islice(places, most - sum(len(curve.loss) for curve in curves)):
            differences, tau, longer = evaluate(Setting(grid[index], variants[variant]))
            curves[variant].add(index, np.asarray(differences, float), tau, longer)

    measure(hopeful())
    best = max(
        range(len(variants)), key=lambda at: curves[at].kept_tau(headline)
    )  # the first of equals
    measure(refining(best))
    kept = [curves[best].kept(keeps) for keeps in by_weight]
    chosen = list(dict.fromkeys(max(indices) for indices in kept if indices))[: request.settings]
    if len(chosen) < request.settings:
        chosen += curves[best].between(headline, chosen)
    measured = [
        Setting(grid[i], variants[at])
        for at, curve in enumerate(curves)
        for i in sorted(curve.loss)
    ]
    return Selection(
        [Setting(grid[index], variants[best]) for index in sorted({0, *chosen})], measured
    )
