"""What is known about one variant of a rule along its grid: loss and tau where measured, a smooth loss in between.

Index 0 is the strictest value of the knob. In front of it stands strict decoding, which loses nothing, as index -1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sklearn.isotonic import IsotonicRegression

from gistgate.certificates.differences import right_or_wrong
from gistgate.certificates.planning import would_certify
from gistgate.certificates.tango import Array


@dataclass(frozen=True)
class Target:
    """A budget as calibration will test it."""

    budget: float
    """Largest mean loss."""
    n: int
    """Prompts that calibration decodes."""
    confidence: float
    """Confidence of the bound."""
    reserve: float
    """Standard errors of what development and calibration show apart, to leave free."""

    def keeps(self, loss: float, spread: float, seen: int, exact: bool) -> bool:
        """Whether calibration would certify the budget if it showed this mean loss and this mean of d squared.

        The reserve is taken off the budget first: both were measured on `seen` other prompts, and what looks best there
        is worse than it looks.
        """
        budget = self.budget - self.reserve * error_apart(max(spread - loss**2, 0.0), self.n, seen)
        return budget > 0 and would_certify(self.n, budget, self.confidence, spread, loss, exact)


def error_apart(variance: float, n: int, seen: int) -> float:
    """Standard error of the mean of d over n prompts minus that over `seen` others, whose variance is given.

    One differing prompt more than was seen keeps few prompts without any from passing for certainty.
    """
    return math.sqrt((variance * seen + 1) / (seen + 1) * (1 / n + 1 / seen))


@dataclass
class Curve:
    """Measurements of one variant at indices of its grid."""

    size: int
    """Values on the grid."""
    loss: dict[int, float] = field(default_factory=dict)
    """Mean of d = strict - loose score, by index."""
    spread: dict[int, float] = field(default_factory=dict)
    """Mean of d squared, by index."""
    tau: dict[int, float] = field(default_factory=dict)
    """Mean accepted length, by index."""
    seen: int = 0
    """Prompts of every measurement."""
    exact: bool = True
    """Whether all scores were right or wrong, so that the exact bound will serve."""

    def add(self, index: int, differences: Array, tau: float) -> None:
        """Take in a measurement of `differences [N]`."""
        self.loss[index], self.spread[index] = float(differences.mean()), float((differences**2).mean())
        self.tau[index], self.seen = tau, len(differences)
        self.exact &= right_or_wrong(differences)

    def kept(self, target: Target) -> list[int]:
        """Measured indices that are predicted to keep the target: a prefix, since smooth losses never fall."""
        if not self.loss:
            return []
        indices = sorted(self.loss)
        losses, spreads = smooth(indices, self.loss), smooth(indices, self.spread)
        found: list[int] = []
        for index, loss, spread in zip(indices, losses, spreads, strict=True):
            if not target.keeps(loss, spread, self.seen, self.exact):
                break
            found.append(index)
        return found

    def loosest(self, target: Target) -> int | None:
        """The loosest measured index that is predicted to keep the target."""
        return max(self.kept(target), default=None)

    def between(self, target: Target, chosen: Sequence[int]) -> list[int]:
        """A measured index between the loosest that keeps the target and the next looser one chosen; at most one."""
        low, _ = self.open_range(target)
        high = min((index for index in chosen if index > low), default=low)
        inside = [index for index in sorted(self.loss) if low < index < high]
        return inside[(len(inside) - 1) // 2 :][:1]

    def open_range(self, target: Target) -> tuple[int, int]:
        """The loosest index known to keep the target (-1: strict), and the strictest known not to (size: none)."""
        kept = self.kept(target)
        return max(kept, default=-1), min(set(self.loss) - set(kept), default=self.size)

    def width(self, target: Target) -> int:
        """How many values lie in the open range."""
        low, high = self.open_range(target)
        return high - low - 1

    def next(self, target: Target) -> int | None:
        """The unmeasured index that halves the open range; None when nothing is open."""
        low, high = self.open_range(target)
        return (low + high) // 2 if high - low > 1 else None

    def kept_tau(self, target: Target) -> float:
        """Largest tau measured within the target; 0 where nothing is."""
        return max((self.tau[index] for index in self.kept(target)), default=0.0)

    def hope(self, target: Target) -> float:
        """Largest tau that may still be found within the target: that of the first value known to be too loose."""
        _, high = self.open_range(target)
        if self.next(target) is None:
            return self.kept_tau(target)
        return max(self.tau[high], self.kept_tau(target)) if high in self.tau else math.inf


def smooth(indices: list[int], values: dict[int, float]) -> list[float]:
    """Values along the grid as the closest sequence that never falls and never is negative."""
    fitted = IsotonicRegression(y_min=0.0).fit_transform(indices, [values[index] for index in indices])
    return [float(value) for value in np.atleast_1d(fitted)]
