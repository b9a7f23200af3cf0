"""How many prompts a budget needs, known before the first one is decoded, for every bound that could certify it.

    python -m gistgate.certificates.planning 0.02 0.05 [0.005]     budget, discordance and loss (default 0) to expect

A plan assumes that calibration will show the expected rates. Calibration shows worse rates about every other time, so a
plan is the least to decode; `pipeline/studies/certify/coverage.py` measures how often a plan and its double certify.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable

from scipy.stats import norm

from gistgate.certificates.bounds import (
    BERNSTEIN,
    BETTING,
    EXACT,
    PLUG_IN,
    Array,
    bernstein_bound,
    bernstein_sequence,
    checked,
    expected_table,
    hoeffding_bentkus,
    p_value,
    refutes,
    right_or_wrong,
    spread_out,
    upper_bound,
    wealth_of_table,
)
from gistgate.core.utils import UserError

ENUMERABLE = 200_000
"""Largest number of prompts for which `needed_n` enumerates; above, the normal approximation is as good."""
HOEFFDING = "Hoeffding-Bentkus"
PLANNED = (0.01, 0.02, 0.05, 0.1)
"""Discordances for which a plan is said before anything is known."""
EXPECTED = 0.05
"""Discordance that the default number of prompts is planned for."""
MOST = 1_000_000
"""Largest number of prompts that a plan names; who needs more needs another setting."""

Certifies = Callable[[Array, float, float], bool]


def exact_certifies(d: Array, budget: float, confidence: float) -> bool:
    """Whether the bound that calibration uses certifies it; only for right-or-wrong scores."""
    if not right_or_wrong(checked(d)):
        raise UserError("The exact bound needs scores that are right or wrong. Use the betting bound for other scores.")
    return upper_bound(d, confidence).within(budget)


def plug_in_certifies(d: Array, budget: float, confidence: float) -> bool:
    """Whether the predictable plug-in bound certifies it, tuned to as many prompts as there are."""
    return float(bernstein_sequence(d, 1 - confidence, planned=len(d))[-1]) <= budget


def bernstein_certifies(d: Array, budget: float, confidence: float) -> bool:
    """Whether the empirical Bernstein bound for a fixed number of prompts certifies it."""
    return bernstein_bound(float(d.mean()), float(d.var()), len(d), 1 - confidence) <= budget


def hoeffding_certifies(d: Array, budget: float, confidence: float) -> bool:
    """Whether Hoeffding-Bentkus on (1 + d) / 2 certifies it."""
    return hoeffding_difference(float(d.mean()), len(d), 1 - confidence) <= budget


def hoeffding_difference(mean: float, n: int, alpha: float) -> float:
    """Hoeffding-Bentkus upper bound on the mean of d in [-1, 1]."""
    return 2 * hoeffding_bentkus((1 + mean) / 2, n, alpha) - 1


CERTIFIES: dict[str, Certifies] = {
    EXACT: exact_certifies,
    BETTING: refutes,
    PLUG_IN: plug_in_certifies,
    BERNSTEIN: bernstein_certifies,
    HOEFFDING: hoeffding_certifies,
}
"""Whether differences d = strict - loose [N] certify a budget at a confidence, by bound, from sharp to wide."""


def needed_prompts(budget: float, confidence: float, discordance: float, loss: float = 0.0) -> dict[str, int | None]:
    """Prompts that certify `budget` if they show these rates, by bound; None where more than `MOST` would be needed.

    Args:
        budget: largest mean of d to certify, in (0, 1).
        discordance: expected mean of d squared; of right-or-wrong scores the share of prompts that differ.
        loss: expected mean of d.

    Raises:
        UserError: the rates are none.
    """
    if not (0 < budget < 1 and 0 < confidence < 1 and abs(loss) <= discordance <= 1):
        raise UserError(
            f"No plan for budget {budget:g}, confidence {confidence:g}, discordance {discordance:g} and loss {loss:g}. "
            "Budget and confidence lie in (0, 1), the discordance between the loss and 1."
        )
    if loss >= budget:
        return dict.fromkeys(CERTIFIES)
    alpha = 1 - confidence

    def betting(n: int) -> bool:
        return wealth_of_table(*expected_table(loss, discordance, n), n, budget) >= -math.log(alpha)

    def plug_in(n: int) -> bool:
        return plug_in_certifies(spread_out(*expected_table(loss, discordance, n), n), budget, confidence)

    def hoeffding(n: int) -> bool:
        losses, gains = expected_table(loss, discordance, n)
        return hoeffding_difference((losses - gains) / n, n, alpha) <= budget

    return {
        EXACT: at_most(needed_n(budget, confidence, discordance, loss)),
        BETTING: fewest(betting),
        PLUG_IN: fewest(plug_in),
        BERNSTEIN: at_most(needed_n(budget, confidence, discordance, loss, exact=False)),
        HOEFFDING: fewest(hoeffding),
    }


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


def fewest(enough: Callable[[int], bool], above: int = 0) -> int | None:
    """The smallest number of prompts that is enough, beyond `above` and up to `MOST`.

    Few numbers are tried, so it has to be monotone.
    """
    reach = above + 1
    while reach < MOST and not enough(reach):
        reach = min(2 * reach, MOST)
    return at_most(bisect_left(range(reach + 1), True, lo=max(above + 1, reach // 2), key=enough))


def at_most(n: int | None) -> int | None:
    """n, unless it is beyond `MOST`."""
    return n if n is not None and n <= MOST else None


def wager_confidence(stop: str, confidence: float) -> float:
    """How sure a wager has to be; where it may certify (`clear`), it gets half of the error."""
    return 1 - (1 - confidence) / 2 if stop == "clear" else confidence


def needed_for(budget: float, confidence: float, rate: float, ternary: bool = True, stop: str = "lost") -> int | None:
    """Prompts that certify `budget` without a net loss at a discordance (mean of d squared), by what decides there.

    The exact bound where the score is right or wrong, else the plug-in Bernstein bound, or the wager if it may certify.
    """
    sure = wager_confidence(stop, confidence)
    if ternary:
        return needed_n(budget, sure, rate)
    plan = needed_prompts(budget, sure, rate)
    deciding = [plan[bound] for bound in (PLUG_IN, *([BETTING] if stop == "clear" else []))]
    return min((n for n in deciding if n is not None), default=None)


def plan_sentence(budget: float, confidence: float, n: int, ternary: bool = True, stop: str = "lost") -> str:
    """What a budget needs, for people, before the first prompt is decoded."""
    plan = {rate: needed_for(budget, confidence, rate, ternary, stop) for rate in PLANNED}
    parts = ", ".join(f"{need or 'too many'} at {rate:.0%}" for rate, need in plan.items())
    return (
        f"A budget of {budget:.2%} at {confidence:.0%} confidence needs, were nothing lost, about so many prompts by "
        f"the share of answers that differ: {parts}; twice as many to be safe. There are {n}."
    )


def default_n(budget: float, confidence: float, ternary: bool, available: int, stop: str = "lost") -> int:
    """Twice what the expected discordance needs, or all there are."""
    need = needed_for(budget, confidence, EXPECTED, ternary, stop)
    return min(available, 2 * need) if need else available


def check_possible(budget: float, confidence: float, n: int, ternary: bool = True, stop: str = "lost") -> None:
    """Refuse what n prompts cannot certify even if no answer differs.

    Raises:
        UserError: with the number that would do.
    """
    least = needed_for(budget, confidence, 0.0, ternary, stop)
    if least is None or n < least:
        raise UserError(
            f"{n} prompts cannot certify a budget of {budget:.2%} even if no answer differs: that takes "
            f"{least or 'too many'}. "
            "Use more prompts (--prompts, or a task with more documents) or a larger budget."
        )


def main() -> None:
    try:
        budget, discordance, loss = [*map(float, sys.argv[1:]), *([0.0] if len(sys.argv) == 3 else [])]
    except ValueError as error:
        raise UserError(
            "A plan needs a budget and a discordance, and may have a loss. Write shares, such as `0.02 0.05`."
        ) from error
    for bound, n in needed_prompts(budget, 0.95, discordance, loss).items():
        print(f"{n if n is not None else 'none':>9}  {bound}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
