"""The upper confidence bound on what looseness costs, from paired scores of strict and loose decoding.

The difference of one prompt is d = strict score - loose score, in [-1, 1]. A budget limits mean(d), the net loss.
Scores that are right or wrong get the exact bound of `gistgate.certificates.tango`, other scores in [0, 1] the plug-in
empirical Bernstein bound, which needs more prompts. This module alone decides between the two. Harm, the mean of
max(d, 0), stands beside the loss with a Hoeffding-Bentkus bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binom

from gistgate.certificates.bernstein import PLUG_IN, bernstein_sequence
from gistgate.certificates.differences import checked, right_or_wrong
from gistgate.certificates.tango import exact_bound, p_value

EXACT = "exact unconditional (Tango's score, Berger-Boos)"


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


def upper_bound(differences: ArrayLike, confidence: float, ternary: bool = True) -> Bound:
    """The upper bound on mean(d) for `differences [N]`.

    Args:
        differences: d of every prompt, in the order of the prompts.
        confidence: probability with which the bound holds.
        ternary: whether the score can only differ by -1, 0 or 1; a difference that shows otherwise overrules it.

    Raises:
        UserError: no prompt, or a difference that is not a number in [-1, 1].
    """
    d = checked(differences)
    n, alpha = len(d), 1 - confidence
    losses, gains = int((d > 0).sum()), int((d < 0).sum())
    exact = ternary and right_or_wrong(d)
    value = exact_bound(losses, gains, n, alpha) if exact else float(bernstein_sequence(d, alpha, planned=n)[-1])
    harm = hoeffding_bentkus(float(np.maximum(d, 0).mean()), n, alpha)
    kind = EXACT if exact else PLUG_IN
    return Bound(value, kind, confidence, n, float(d.mean()), losses, gains, float((d * d).mean()), harm)


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
