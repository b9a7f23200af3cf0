"""How many prompts a budget needs, known before the first one is decoded, for every bound that could certify it.

    python -m gistgate.certificates.planning 0.02 0.05 [0.005]     budget, expected discordance, expected loss (default 0)

A plan assumes that calibration will show the expected rates. It shows worse ones about every other time, so a plan is
the least to decode; `pipeline/studies/certify/coverage.py` measures how often it certifies, and how often its double does.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from gistgate.certificates.bernstein import PLUG_IN, bernstein_sequence
from gistgate.certificates.betting import BETTING, refutes, wealth_of_table
from gistgate.certificates.bounds import (
    BERNSTEIN,
    EXACT,
    bernstein_bound,
    checked,
    expected_table,
    hoeffding_bentkus,
    right_or_wrong,
    upper_bound,
)
from gistgate.certificates.fixed_sequence import needed_n
from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from pipeline.common.entry import run

HOEFFDING = "Hoeffding-Bentkus"
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
        return wealth_of_table(*expected_table(loss, discordance, n), n, budget) >= -np.log(alpha)

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


def spread_out(losses: int, gains: int, n: int) -> Array:
    """Differences [N] with so many losses and gains, spread as evenly as whole prompts allow."""
    d = np.zeros(n)
    places = np.linspace(0, n, losses + gains, endpoint=False).astype(int)
    share = losses / max(losses + gains, 1)
    is_loss = np.diff(np.floor(np.arange(losses + gains + 1) * share + 1e-9)) > 0
    d[places] = np.where(is_loss, 1.0, -1.0)
    return d


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
    run(main)
