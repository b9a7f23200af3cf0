"""How many prompts a budget needs, at least, known before the first one is decoded, by the bound
that decides there.

python -m gistgate.certificates.planning 0.02 0.05 [0.005]     budget, discordance and loss (default 0) to expect
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from scipy.stats import norm

from gistgate.certificates.bounds import growth, p_value, wealth
from gistgate.core.utils import UserError

ENUMERABLE = (
    200_000  # prompts up to which `needed_n` enumerates; above, the normal approximation is as good
)
PLANNED = (0.01, 0.02, 0.05, 0.1)  # discordances for which a plan is said before anything is known
EXPECTED = 0.05  # discordance that the default number of prompts is planned for
MOST = (
    1_000_000  # largest number of prompts that a plan names; who needs more needs another setting
)


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
    guess = math.ceil(
        float(norm.isf(1 - confidence)) ** 2
        * max(discordance - loss**2, 0.0)
        / (budget - loss) ** 2
    )
    if guess > ENUMERABLE:
        return guess
    low = more_than
    high = max(more_than + 1, guess, 2)
    while not would_certify(high, budget, confidence, discordance, loss, True):
        low = high
        high = 2 * high
    while high - low > 1:  # counts are whole, so a few prompts fewer may pass by luck of rounding
        middle = (low + high) // 2
        enough = would_certify(middle, budget, confidence, discordance, loss, True)
        low, high = (low, middle) if enough else (middle, high)
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
    """How sure a sequential test has to be; where it may certify (`clear`) beside the exact bound,
    it gets half of the error. The bound of other scores is that of the sequential test itself, and
    needs no share of its own."""
    return 1 - (1 - confidence) / 2 if exact and stop == "clear" else confidence


def needed_for(
    budget: float,
    confidence: float,
    rate: float,
    ternary: bool = True,
    stop: str = "lost",
    loss: float = 0.0,
) -> int | None:
    """Prompts that certify `budget` at a discordance (mean of d squared) and a mean loss, by the
    bound that decides.
    """
    sure = confidence_of_test(stop, confidence, ternary)
    if ternary or loss >= budget:
        return needed_n(budget, sure, rate, loss)
    return fewest(lambda n: would_certify(n, budget, sure, rate, loss, exact=False))


def plan_sentence(
    budget: float,
    confidence: float,
    n: int,
    ternary: bool = True,
    stop: str = "lost",
    lost: float = 0.0,
    asked: int | None = None,
) -> str:
    """What a budget needs, for people, before the first prompt is decoded, if this share of what
    differs is lost.
    """
    plan = {
        rate: needed_for(budget, confidence, rate, ternary, stop, lost * rate) for rate in PLANNED
    }
    fewer = ""
    if asked is not None and asked != n:
        few, many = (least_budget(m, confidence, ternary, stop) for m in (n, asked))
        fewer = (
            f" of the {asked} asked for; they certify {few:.1%} at best, if no answer differs, and"
            f" all {many:.1%}"
        )
    parts = ", ".join(f"{need or 'too many'} at {rate:.0%}" for rate, need in plan.items())
    return (
        f"A budget of {budget:.2%} at {confidence:.0%} confidence needs, were"
        f" {'all' if lost else 'nothing'} lost, about so many prompts by the share of answers that"
        f" differ: {parts}; twice as many to be safe. There are {n}{fewer}."
    )


def least_budget(n: int, confidence: float, ternary: bool, stop: str) -> float:
    """The smallest budget, in steps of 0.1 %, that n prompts certify if no answer differs."""

    def enough(step: int) -> bool:
        return (needed_for(step / 1000, confidence, 0.0, ternary, stop) or MOST) <= n

    return (1 + bisect_left(range(1, 1000), True, key=enough)) / 1000


def default_n(
    budget: float, confidence: float, ternary: bool, available: int, stop: str = "lost"
) -> int:
    """Twice what the expected discordance needs, or all there are."""
    need = needed_for(budget, confidence, EXPECTED, ternary, stop)
    return min(available, 2 * need) if need else available


def check_possible(
    budget: float, confidence: float, n: int, ternary: bool = True, stop: str = "lost"
) -> None:
    """Refuse what n prompts cannot certify even if no answer differs, with the number that would
    do.
    """
    least = needed_for(budget, confidence, 0.0, ternary, stop)
    if least is None or n < least:
        raise UserError(
            f"{n} prompts cannot certify a budget of {budget:.2%} even if no answer differs: that"
            f" takes {least or 'too many'}. Use more prompts (--prompts, or a task with more"
            " documents) or a larger budget."
        )


def main() -> None:
    budget, discordance, *loss = map(float, sys.argv[1:])
    for score, ternary in (("right or wrong", True), ("between 0 and 1", False)):
        n = needed_for(budget, 0.95, discordance, ternary, loss=sum(loss))
        print(f"{n if n is not None else 'none':>9}  scores that are {score}")


if __name__ == "__main__":
    main()
