"""Betting on a small loss: an upper bound on mean(d) that holds at every number of prompts at once.

A bet on mean(d) < m is placed prompt by prompt: at a stake s in (0, 1) its wealth is multiplied by
1 + s (m - d) / (1 - m). The wealth is never negative and does not grow on average while the mean is m or more, so it
ever reaches 1 / alpha with probability alpha at most, however often it is checked (Ville's inequality). The wealth is
spread evenly over a grid of stakes, because the best stake depends on the unknown loss (arXiv 2010.09686, the grid form
of hedged capital). No stake depends on the data, so the wealth does not depend on the order of the prompts.

Axis letters: N prompts, S stakes.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from gistgate.certificates.differences import checked
from gistgate.certificates.tango import RESOLUTION, Array
from gistgate.errors import UserError

BETTING = "betting (hedged capital over a grid of stakes)"

STAKES_S = np.geomspace(0.01, 0.98, 12)
"""Shares of the largest stake that cannot lose everything; small ones serve noisy scores, large ones rare losses."""

Answer = Literal["within", "beyond"]
"""Whether the prompts seen so far show a loss within a budget or beyond it."""


def growth(d: ArrayLike, loss: float) -> Array:
    """Logarithm of what one prompt of each `d [N]` does to a bet on mean(d) < `loss`, by stake [N, S]."""
    return np.log1p(STAKES_S * ((loss - np.asarray(d, float)) / (1 - loss))[..., None])


def counter_growth(d: ArrayLike, loss: float) -> Array:
    """The same of the opposite bet, that mean(d) > `loss` [N, S]: its mirror image."""
    return growth(-np.asarray(d, float), -loss)


def wealth(log_wealth_S: Array) -> Array:
    """Logarithm of the wealth of all stakes together `[..., S]` -> [...]; each got the same share."""
    return np.asarray(logsumexp(log_wealth_S, axis=-1) - math.log(len(STAKES_S)))


def wealth_of_table(losses: int, gains: int, n: int, loss: float) -> float:
    """Logarithm of the wealth of a bet on mean(d) < `loss` after n right-or-wrong pairs, whatever their order."""
    return float(wealth(np.array([losses, gains, n - losses - gains]) @ growth([1.0, -1.0, 0.0], loss)))


def richest(differences: ArrayLike, loss: float) -> float:
    """Largest logarithm of the wealth of a bet on mean(d) < `loss` along `differences [N]`."""
    return float(wealth(growth(checked(differences), loss).cumsum(0)).max())


def refutes(differences: ArrayLike, budget: float, confidence: float) -> bool:
    """Whether a loss of `budget` or more was ruled out at any point along `differences [N]`."""
    return richest(differences, budget) >= -math.log(1 - confidence)


def betting_bound(differences: ArrayLike, alpha: float) -> float:
    """Upper bound on mean(d) of `differences [N]` in [-1, 1], in their order, as valid as if one had looked only once.

    The smallest mean that the best moment along the way refutes; wealth grows with the mean that is bet against, so
    it is found by halving. A negative bound is given as 0.
    """
    d = checked(differences)
    low, high = 0.0, 1.0
    while high - low > RESOLUTION / 4:
        middle = (low + high) / 2
        low, high = (low, middle) if refutes(d, middle, 1 - alpha) else (middle, high)
    return round(min(1.0, math.ceil(high / RESOLUTION) * RESOLUTION), 6) if low else 0.0


def answer_at(differences: ArrayLike, budget: float, confidence: float) -> tuple[Answer | None, int]:
    """What a wager along `differences [N]` would answer, and after how many prompts; None and N where it stays open."""
    wager = Wager(budget, confidence)
    return wager.see_all(differences), wager.n


class Wager:
    """Two opposite bets on one budget while prompts come in; once either is won, decoding may stop.

    The answer "within" is a certificate: it is wrong with probability 1 - confidence at most. The answer "beyond" is as
    sure, and saves the remaining prompts of a setting that loses the budget. An answer once given stays.
    """

    def __init__(self, budget: float, confidence: float) -> None:
        if not (0 < budget < 1 and 0 < confidence < 1):
            raise UserError(
                f"A budget of {budget:g} at confidence {confidence:g} cannot be wagered on; both lie in (0, 1)."
            )
        self.budget, self.enough = budget, -math.log(1 - confidence)
        self.answer: Answer | None = None
        self.n = 0
        """Prompts seen until the answer was clear, or so far."""
        self.for_S, self.against_S = np.zeros(len(STAKES_S)), np.zeros(len(STAKES_S))

    def see(self, difference: float) -> Answer | None:
        """Take in d of the next prompt; returns the answer, or None while it is open."""
        return self.see_all([difference])

    def see_all(self, differences: ArrayLike) -> Answer | None:
        """Take in the next `differences [N]` in their order; returns the answer, or None while it is open."""
        d = checked(differences)
        if self.answer is not None:
            return self.answer
        for_NS = self.for_S + growth(d, self.budget).cumsum(0)
        against_NS = self.against_S + counter_growth(d, self.budget).cumsum(0)
        within_N, beyond_N = wealth(for_NS) >= self.enough, wealth(against_NS) >= self.enough
        clear_N = within_N | beyond_N
        self.for_S, self.against_S = for_NS[-1], against_NS[-1]
        self.n += int(clear_N.argmax()) + 1 if clear_N.any() else len(d)
        if clear_N.any():
            self.answer = "within" if within_N[clear_N.argmax()] else "beyond"
        return self.answer
