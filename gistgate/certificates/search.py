"""Which settings of a rule go to certification: for every budget the loosest that is predicted to
keep it.

A spare slot tests a value between the headline's and the next looser one. Decoding is expensive, so
each measurement halves the open range of the variant that may still be the fastest at the headline
budget; the rest refine the others. Nothing here has to be right for a certificate to hold, because
its prompts are not those of the search.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.isotonic import IsotonicRegression

from gistgate.certificates.bounds import Array, right_or_wrong
from gistgate.certificates.planning import Stop, confidence_of_test, would_certify
from gistgate.coverage.ask import Settings


@dataclass(frozen=True)
class Setting:
    """One value of the knob together with one variant of the rule's other settings."""

    value: float | None  # the knob; None for a rule without one
    variant: Settings = field(default_factory=dict)
    """Settings that override the method's fixed ones."""


@dataclass(frozen=True)
class Evaluation:
    """What was seen on the development prompts."""

    differences: Array  # d = strict - loose score [N]
    tau: float  # mean accepted length
    growth: float  # of the mean length, as a share
    fluency_loss: float = 0.0  # of log-probability, in nats per token


Evaluate = Callable[[Setting], Evaluation]


@dataclass(frozen=True)
class Request:
    """What shall be certified, and how."""

    budgets: tuple[float, ...]  # largest mean losses, each a claim of its own
    confidence: float = 0.95  # probability with which each certificate holds
    n: int = 1000  # most calibration prompts to decode for a setting
    stop: Stop = "lost"  # when to leave a setting early
    # most settings to test behind the strictest; 0: one alone, the best for the headline budget
    settings: int = 3
    # most settings to measure on development prompts, plus one for each variant behind the first
    evaluations: int = 6
    reserve: float = 1.0  # standard errors that the choice of settings leaves free below a budget
    # largest growth of the mean length, as a share, a claim beside each budget; None: any
    growth: float | None = None
    # largest loss of log-probability in nats per token, another such claim; None: any
    fluency: float | None = None
    # the budget that decides between variants; None takes the largest
    headline: float | None = None

    def keeps(self, budget: float, loss: float, spread: float, seen: int, exact: bool) -> bool:
        """Whether calibration would certify the budget, less the reserve, at this loss and mean of
        d squared, which `seen` prompts showed.
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


@dataclass(frozen=True)
class Measurement:
    """What development prompts showed at one setting."""

    loss: float  # mean of d = strict - loose score
    spread: float  # mean of d squared
    tau: float  # mean accepted length
    growth: float  # of the mean length, as a share
    fluency_loss: float  # of log-probability, in nats per token


@dataclass
class Curve:
    """Measurements of one variant at indices of its grid, which goes from strict to loose."""

    grid: Sequence[float]
    variant: Settings
    request: Request
    measured: dict[int, Measurement] = field(default_factory=dict)  # by index
    seen: int = 0  # prompts of every measurement
    exact: bool = True  # whether all scores were right or wrong, so that the exact bound will serve

    def setting(self, index: int) -> Setting:
        """The setting at an index of the grid."""
        return Setting(self.grid[index], self.variant)

    def measure(self, index: int, evaluate: Evaluate) -> None:
        """Evaluate the setting at an index and take in what it shows."""
        seen = evaluate(self.setting(index))
        d = seen.differences
        self.measured[index] = Measurement(
            float(d.mean()), float((d**2).mean()), seen.tau, seen.growth, seen.fluency_loss
        )
        self.seen = len(d)
        self.exact &= right_or_wrong(d)

    def kept(self, budget: float) -> list[int]:
        """Measured indices that are predicted to keep the budget: a prefix, since smooth losses
        never fall.
        """
        indices = sorted(self.measured)
        measured = [self.measured[index] for index in indices]
        losses = smooth(indices, [entry.loss for entry in measured])
        spreads = smooth(indices, [entry.spread for entry in measured])
        longest = math.inf if self.request.growth is None else self.request.growth
        most_lost = math.inf if self.request.fluency is None else self.request.fluency
        for place, (entry, loss, spread) in enumerate(zip(measured, losses, spreads, strict=True)):
            is_kept = self.request.keeps(budget, loss, spread, self.seen, self.exact)
            if not is_kept or entry.growth > longest or entry.fluency_loss > most_lost:
                return indices[:place]
        return indices

    def open_range(self, budget: float) -> tuple[int, int]:
        """The loosest index known to keep the budget (-1: strict), and the strictest known not to
        (the grid's length: none).
        """
        loosest = max(self.kept(budget), default=-1)
        refused = (index for index in self.measured if index > loosest)
        return loosest, min(refused, default=len(self.grid))

    def width(self, budget: float) -> int:
        """Steps from the loosest index that keeps the budget to the strictest that does not."""
        low, high = self.open_range(budget)
        return high - low

    def next(self, budget: float) -> int | None:
        """The unmeasured index that halves the open range; None when nothing is open."""
        low, high = self.open_range(budget)
        return (low + high) // 2 if high - low > 1 else None

    def between(self, budget: float, chosen: Sequence[int]) -> list[int]:
        """A measured index between the loosest that keeps the budget and the next looser one
        chosen; at most one.
        """
        low, _ = self.open_range(budget)
        high = min((index for index in chosen if index > low), default=low)
        inside = sorted(index for index in self.measured if low < index < high)
        return inside[(len(inside) - 1) // 2 :][:1]

    def kept_tau(self, budget: float) -> float:
        """Largest tau measured within the budget; 0 where nothing is."""
        return max((self.measured[index].tau for index in self.kept(budget)), default=0.0)

    def hope(self, budget: float) -> float:
        """Largest tau that may still be found within the budget: that of the first value known to
        be too loose.
        """
        tau = self.kept_tau(budget)
        low, high = self.open_range(budget)
        if high - low <= 1:
            return tau
        return max(self.measured[high].tau, tau) if high in self.measured else math.inf


def smooth(indices: Sequence[int], values: Sequence[float]) -> list[float]:
    """Values along the grid as the closest sequence that never falls and never is negative."""
    if not indices:
        return []
    fitted = IsotonicRegression(y_min=0.0).fit_transform(indices, values)
    return [float(value) for value in np.atleast_1d(fitted)]


def choose_settings(
    grid: Sequence[float], variants: Sequence[Settings], evaluate: Evaluate, request: Request
) -> Selection:
    """The sequence of one variant over a `grid` from strict to loose; it begins with the strictest,
    measured or not.
    """
    curves = [Curve(grid, variant, request) for variant in variants]
    headline = request.headline_budget
    budgets = [headline, *sorted(set(request.budgets) - {headline})]  # by weight
    evaluations = request.evaluations + len(variants) - 1
    for _ in range(evaluations):  # until no variant can beat the best tau known
        curve = max(curves, key=lambda curve: curve.hope(headline))
        index = curve.next(headline)
        if index is None:
            break
        curve.measure(index, evaluate)
        evaluations -= 1
    best = max(curves, key=lambda curve: curve.kept_tau(headline))  # the first of equals
    for _ in range(evaluations):  # the open ranges of the best variant, the widest first
        index = best.next(max(budgets, key=best.width))
        if index is None:
            break
        best.measure(index, evaluate)
    loosest = [best.open_range(budget)[0] for budget in budgets]
    most = max(request.settings, 1)
    chosen = list(dict.fromkeys(index for index in loosest if index >= 0))[:most]
    if len(chosen) < request.settings:
        chosen += best.between(headline, chosen)
    if request.settings or not chosen:
        chosen.append(0)
    measured = [curve.setting(index) for curve in curves for index in sorted(curve.measured)]
    return Selection([best.setting(index) for index in sorted(set(chosen))], measured)
