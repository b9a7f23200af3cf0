"""Which setting of a rule may be used within a quality budget: fixed-sequence testing, and what a refusal says.

The settings are fixed beforehand, ordered from strict to loose, and tested in that order; testing stops at the first
that cannot be certified, and the last one that passed is kept. The level then holds for the rule without correction.
Whoever picks the best of several certified rules or budgets afterwards multiplies the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from numpy.typing import ArrayLike
from scipy.stats import norm

from gistgate.certificates.bounds import EXACT, Bound, bernstein_bound, expected_table, upper_bound
from gistgate.certificates.tango import p_value

ENUMERABLE = 200_000
"""Largest number of prompts for which `needed_n` enumerates; above, the normal approximation is as good."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a fixed sequence at one budget."""

    budget: float
    """Largest mean loss that was to be certified."""
    passed: int | None
    """Index of the loosest certified setting; None when not even the first was."""
    bounds: tuple[Bound, ...]
    """Bounds of the settings that were tested; the last may be the one that failed."""
    needed_n: int | None
    """After a refusal, the prompts that would certify the first setting; None where no number would."""

    @property
    def certified(self) -> bool:
        """Whether any setting was certified."""
        return self.passed is not None

    @property
    def bound(self) -> Bound | None:
        """The bound of the setting that was kept, or of the one that was refused; None without a setting."""
        if not self.bounds:
            return None
        return self.bounds[self.passed if self.passed is not None else 0]

    @property
    def refusal(self) -> str | None:
        """Why nothing was certified and what would help, in a sentence or two; None after a success."""
        if self.certified or self.bound is None:
            return None
        b = self.bound
        cause = (
            f"A budget of {self.budget:.2%} cannot be certified: {b.n} prompts with a loss of {b.mean:.2%} and "
            f"{b.discordant / b.n:.2%} discordant pairs bound it by {b.value:.2%}."
        )
        if self.needed_n is None:
            return f"{cause} More prompts would not help; use a stricter setting or a larger budget."
        return f"{cause} About {self.needed_n} prompts would do, or a stricter setting."


def fixed_sequence(outcomes_by_setting: Iterable[ArrayLike], budget: float, confidence: float) -> Verdict:
    """Test settings from strict to loose, each by its differences d = strict - loose `[N]`, and stop at a failure.

    The iterable is read lazily: a setting behind the first failure is never asked for.
    """
    bounds: list[Bound] = []
    for differences in outcomes_by_setting:
        bounds.append(upper_bound(differences, confidence))
        if not bounds[-1].within(budget):
            break
    failed = bool(bounds) and not bounds[-1].within(budget)
    passed = len(bounds) - 1 - failed
    needed = needed_beyond(bounds[0], budget) if bounds and passed < 0 else None
    return Verdict(budget, passed if passed >= 0 else None, tuple(bounds), needed)


def needed_beyond(bound: Bound, budget: float) -> int | None:
    """How many prompts would certify `budget` where those behind `bound` did not, were their rates to stay."""
    return needed_n(budget, bound.confidence, bound.spread, bound.mean, bound.kind == EXACT, more_than=bound.n)


def needed_n(
    budget: float, confidence: float, discordance: float, loss: float = 0.0, exact: bool = True, more_than: int = 0
) -> int | None:
    """Prompts that would certify `budget` if they showed this discordance (mean of d squared) and this mean loss.

    Counts are whole, so a few prompts fewer may pass by luck of rounding. None where the loss uses up the budget.
    """
    if loss >= budget:
        return None
    z = float(norm.isf(1 - confidence))
    guess = math.ceil(z**2 * max(discordance - loss**2, 0.0) / (budget - loss) ** 2)
    if exact and guess > ENUMERABLE:
        return guess
    low, high = more_than, max(more_than + 1, guess, 2)
    while not would_certify(high, budget, confidence, discordance, loss, exact):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        passes = would_certify(middle, budget, confidence, discordance, loss, exact)
        low, high = (low, middle) if passes else (middle, high)
    return high


def would_certify(n: int, budget: float, confidence: float, discordance: float, loss: float, exact: bool) -> bool:
    """Whether n prompts with these rates keep the budget."""
    if exact:
        losses, gains = expected_table(loss, discordance, n)
        return p_value(losses, gains, n, budget) <= 1 - confidence
    return bernstein_bound(loss, discordance - loss**2, n, 1 - confidence) <= budget
