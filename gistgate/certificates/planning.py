"""How many prompts a budget needs, at least, known before the first one is decoded, by the bound
that decides there.

    python -m gistgate.certificates.planning 0.02 0.05 [0.005]

takes the budget, the discordance and the loss (default 0) to expect.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from gistgate.certificates.bounds import growth, p_value, wealth
from gistgate.core.utils import UserError

Stop = Literal["planned", "lost", "clear"]
"""When the test of a setting ends early (docs/certificates.md)."""

ENUMERABLE = 200_000
"""Prompts up to which `needed_n` enumerates; above, the normal approximation is as good."""
PLANNED = (0.01, 0.02, 0.05, 0.1)
"""Discordances for which a plan is said before anything is known."""
EXPECTED = 0.05
"""Discordance that the default number of prompts is planned for."""
MOST = 1_000_000
"""Largest number of prompts that a plan names; who needs more needs another setting."""


def expected_table(loss: float, discordance: float, n: int) -> tuple[int, int]:
    """Losses and gains among n pairs at these rates, rounded against the loose rule."""
    discordance = max(discordance, abs(loss))
    losses = min(n, math.ceil(n * (discordance + loss) / 2 - 1e-9))
    return losses, min(max(0, math.floor(n * (discordance - loss) / 2 + 1e-9)), n - losses)


def would_certify(
    n: int, budget: float, confidence: float, discordance: float, loss: float, exact: bool
) -> bool:
    """Whether n prompts with these rates keep the budget."""
    if exact:
        return p_value(*expected_table(loss, discordance, n), n, budget) <= 1 - confidence
    share = max(discordance, abs(loss))
    rates = np.array([(share + loss) / 2, (share - loss) / 2, 1 - share])
    return float(wealth(n * rates @ growth([1.0, -1.0, 0.0], budget))) >= -math.log(1 - confidence)


def needed_n(
    budget: float, confidence: float, discordance: float, loss: float = 0.0, more_than: int = 0
) -> int | None:
    """Prompts by which the exact bound would certify `budget` if they showed this discordance and
    this mean loss.
    """
    if loss >= budget:
        return None
    variance = max(discordance - loss**2, 0.0)
    quantile = float(norm.isf(1 - confidence))
    guess = math.ceil(quantile**2 * variance / (budget - loss) ** 2)
    if guess > ENUMERABLE:
        return guess

    def enough(n: int) -> bool:
        return would_certify(n, budget, confidence, discordance, loss, exact=True)

    low = more_than
    high = max(more_than + 1, guess, 2)
    while not enough(high):
        low = high
        high = 2 * high
    while high - low > 1:  # counts are whole, so a few prompts fewer may pass by luck of rounding
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def fewest(enough: Callable[[int], bool], above: int = 0) -> int | None:
    """The smallest number of prompts beyond `above` and up to `MOST` that is enough, which has to
    be monotone.
    """
    reach = above + 1
    while reach < MOST and not enough(reach):
        reach = min(2 * reach, MOST)
    n = bisect_left(range(reach + 1), True, lo=max(above + 1, reach // 2), key=enough)
    return n if n <= MOST else None


def confidence_of_test(stop: str, confidence: float, exact: bool) -> float:
    """How sure a sequential test has to be.

    Where it may certify (`clear`) beside the exact bound, it gets half of the error. The bound of
    other scores is that of the sequential test itself, and needs no share of its own.
    """
    return 1 - (1 - confidence) / 2 if exact and stop == "clear" else confidence


@dataclass(frozen=True)
class Plan:
    """A budget and the bound that decides about it, before the first prompt is decoded."""

    budget: float
    confidence: float
    ternary: bool = True
    """Whether scores differ by -1, 0 or 1 alone, so that the exact bound decides."""
    stop: Stop = "lost"

    def needed(self, discordance: float, loss: float = 0.0) -> int | None:
        """Prompts that certify the budget at a discordance (mean of d squared) and a mean loss;
        None where no number does.
        """
        sure = confidence_of_test(self.stop, self.confidence, self.ternary)
        if self.ternary or loss >= self.budget:
            return needed_n(self.budget, sure, discordance, loss)
        return fewest(lambda n: would_certify(n, self.budget, sure, discordance, loss, exact=False))

    def sentence(self, n: int, lost: float = 0.0, planned: int | None = None) -> str:
        """What the budget needs, for people, if the share `lost` of what differs is lost; there are
        n prompts of those that were `planned`.
        """
        numbers = []
        for rate in PLANNED:
            need = self.needed(rate, lost * rate)
            numbers.append(f"{need or 'too many'} if {rate:.0%}")
        first, *others = numbers
        premise = "every answer that differs is lost" if lost else "nothing is lost"
        fewer = "" if planned in (None, n) else f" of the {planned} asked for"
        return (
            f"If {premise}, a budget of {self.budget:.2%} at {self.confidence:.0%} confidence takes"
            f" about so many prompts: {first} of the answers differ, {', '.join(others)}; plan for"
            f" twice as many. There are {n}{fewer}."
        )

    def usual_n(self, available: int) -> int:
        """Twice what the expected discordance needs, or all there are."""
        need = self.needed(EXPECTED)
        return min(available, 2 * need) if need else available

    def check(self, n: int) -> None:
        """Refuse what n prompts cannot certify even if no answer differs, with the number that
        would do.
        """
        least = self.needed(0.0)
        if least is None or n < least:
            raise UserError(
                f"{n} prompts cannot certify a budget of {self.budget:.2%} even if no answer"
                f" differs: that takes {least or 'too many'}. Use more prompts (--prompts, or a"
                " task with more documents) or a larger budget."
            )


def main() -> None:
    """Print a line for each kind of score."""
    budget, discordance, *loss = map(float, sys.argv[1:])
    for score, ternary in (("right or wrong", True), ("between 0 and 1", False)):
        n = Plan(budget, 0.95, ternary).needed(discordance, sum(loss))
        print(f"{n if n is not None else 'none':>9}  scores that are {score}")


if __name__ == "__main__":
    main()
