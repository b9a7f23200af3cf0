"""Upper confidence bounds on what looseness costs, from paired scores of strict and loose decoding.

The difference of one prompt is d = strict score - loose score, in [-1, 1]. What a budget limits is mean(d), the net
loss. Right-or-wrong scores get the exact bound of `gistgate.certificates.tango`; other scores in [0, 1] an empirical Bernstein
bound, which needs more prompts. Harm, the mean of max(d, 0), stands beside it with a Hoeffding-Bentkus bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from gistgate.certificates.tango import Array, exact_bound, p_value
from gistgate.errors import UserError

EXACT = "exact unconditional (Tango's score, Berger-Boos)"
BERNSTEIN = "empirical Bernstein (Maurer-Pontil)"


@dataclass(frozen=True)
class Bound:
    """What n paired prompts say about the loss, at one confidence."""

    value: float
    """One-sided upper bound on the mean loss."""
    kind: str
    """Which bound it is."""
    confidence: float
    """Probability with which the bound holds, at least."""
    n: int
    """Prompts."""
    mean: float
    """Observed mean loss; negative when loose decoding scored better."""
    losses: int
    """Prompts on which loose decoding scored lower."""
    gains: int
    """Prompts on which loose decoding scored higher."""
    spread: float
    """Mean of d squared; for right-or-wrong scores the share of discordant pairs."""
    harm: float
    """Upper bound on the mean of max(d, 0), by Hoeffding-Bentkus."""

    @property
    def discordant(self) -> int:
        """Prompts on which the two scores differ."""
        return self.losses + self.gains

    def within(self, budget: float) -> bool:
        """Whether the loss is certified to be `budget` at most."""
        if self.kind == EXACT and p_value(self.losses, self.gains, self.n, budget) > 1 - self.confidence:
            return False
        return self.value <= budget


def upper_bound(differences: ArrayLike, confidence: float) -> Bound:
    """The upper bound on mean(d) for `differences [N]`: exact where all are -1, 0 or 1, else empirical Bernstein.

    Raises:
        UserError: no prompt, or a difference that is not a number in [-1, 1].
    """
    d = checked(differences)
    n, alpha = len(d), 1 - confidence
    losses, gains = int((d > 0).sum()), int((d < 0).sum())
    exact = right_or_wrong(d)
    mean, spread = float(d.mean()), float((d * d).mean())
    value = exact_bound(losses, gains, n, alpha) if exact else bernstein_bound(mean, spread - mean**2, n, alpha)
    harm = hoeffding_bentkus(float(np.maximum(d, 0).mean()), n, alpha)
    return Bound(value, EXACT if exact else BERNSTEIN, confidence, n, mean, losses, gains, spread, harm)


def checked(differences: ArrayLike) -> Array:
    """The differences as an array [N]; UserError unless all are numbers in [-1, 1] and there is one at least."""
    d = np.asarray(differences, float).ravel()
    if not len(d):
        raise UserError("A bound needs at least one prompt, and there is none. Raise the size of the split.")
    if not (np.isfinite(d) & (np.abs(d) <= 1)).all():
        raise UserError(
            f"A difference of scores is {d[~(np.abs(d) <= 1)][0]}, outside [-1, 1]. Bounds need scores in [0, 1]: "
            "name a metric of the task that has them by `task_metric` in params.yaml."
        )
    return d


def right_or_wrong(d: Array) -> bool:
    """Whether all differences are -1, 0 or 1."""
    return bool(np.isin(d, (-1.0, 0.0, 1.0)).all())


def bernstein_bound(mean: float, variance: float, n: int, alpha: float) -> float:
    """Empirical Bernstein upper bound on the mean of values in [-1, 1] (arXiv 0907.3740, theorem 4, range 2)."""
    if n < 2:
        return 1.0
    log = math.log(2 / alpha)
    sample_variance = max(variance, 0.0) * n / (n - 1)
    return min(1.0, mean + math.sqrt(2 * sample_variance * log / n) + 2 * 7 * log / (3 * (n - 1)))


def hoeffding_bentkus(mean: float, n: int, alpha: float) -> float:
    """Upper bound on the mean of values in [0, 1] of which n were seen with this mean (arXiv 2110.01052).

    Both inequalities fall in the tested rate, so the smallest rejected rate is found by halving.
    """
    total = math.ceil(n * mean - 1e-9)
    low, high = mean, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        hoeffding = math.exp(-n * relative_entropy(mean, rate))
        bentkus = math.e * float(binom.cdf(total, n, rate))
        low, high = (low, rate) if min(hoeffding, bentkus) <= alpha else (rate, high)
    return high


def relative_entropy(a: float, b: float) -> float:
    """KL divergence between coins that show heads with probability a and b, in nats."""
    heads = a * math.log(a / b) if a > 0 else 0.0
    tails = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return heads + tails


def expected_table(loss: float, discordance: float, n: int) -> tuple[int, int]:
    """Losses and gains among n pairs at these rates, rounded against the loose rule."""
    discordance = max(discordance, abs(loss))
    losses = min(n, math.ceil(n * (discordance + loss) / 2 - 1e-9))
    gains = max(0, math.floor(n * (discordance - loss) / 2 + 1e-9))
    return losses, min(gains, n - losses)
