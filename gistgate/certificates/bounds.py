"""One-sided upper confidence bounds on what looseness costs: d = strict - loose score of the same
prompts, in [-1, 1].

Of right-or-wrong pairs p_loss lose (strict right, loose wrong) and p_gain gain; a budget limits the
`difference` p_loss - p_gain, and the `discordance` p_loss + p_gain is the nuisance. All bounds
assume that the prompts are independent draws from one distribution; a bound of `confidence` falls
below the true mean of that distribution with probability 1 - confidence at most, for every number
of prompts. Sources: the statistic is T. Tango's, Statistics in Medicine 17 (1998) 891; its nuisance
is maximised over the region of R. L. Berger and D. D. Boos, Journal of the American Statistical
Association 89 (1994) 1012; other scores are bounded by betting (arXiv 2010.09686), which needs
bounded scores alone. Axis letters: M numbers of discordant pairs, D discordances, N prompts, S
stakes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, rel_entr
from scipy.stats import beta, binom

Array = NDArray[np.float64]
Decision = Literal["within", "beyond"]
"""Whether the prompts seen so far show a loss within a budget or beyond it."""

EXACT = "exact unconditional (Tango's score, Berger-Boos)"
BETTING = "betting (hedged capital over a grid of stakes)"

# probability with which the true discordance lies outside its region; added to every p-value
GAMMA = 1e-4
TAIL = 1e-10  # mass of numbers of discordant pairs that is not enumerated; added to every p-value
# statistics closer than this count as equal, so that rounding cannot drop a table from the tail
TIE = 1e-9
# discordances at which the tail is evaluated; half as many refine around the largest
NUISANCE_POINTS = 48
# differences above the bound that are looked at, because the p-value is not quite monotone
SCAN_POINTS = 12
RESOLUTION = 1e-6  # bounds are rounded up to multiples of this
# Shares of the largest stake that cannot lose everything; small ones serve noisy scores, large ones
# rare losses.
STAKES_S = np.geomspace(0.03, 0.98, 7)


def checked(differences: ArrayLike) -> Array:
    """Return the differences as an array [N] of numbers in [-1, 1]."""
    d = np.asarray(differences, float).ravel()
    assert len(d) and (np.abs(d) <= 1).all(), "a bound needs prompts, and scores in [0, 1]"
    return d


def right_or_wrong(d: Array) -> bool:
    """Whether all differences are -1, 0 or 1."""
    return bool(np.isin(d, (-1, 0, 1)).all())


@dataclass(frozen=True)
class Bound:
    """What n paired prompts say about the loss, at one confidence."""

    value: float  # one-sided upper bound on the mean loss
    kind: str  # EXACT or BETTING
    confidence: float  # probability with which the bound holds, at least
    n: int  # prompts
    mean: float  # observed mean loss; negative when loose decoding scored better
    losses: int  # prompts on which loose decoding scored lower
    gains: int  # prompts on which loose decoding scored higher
    spread: float  # mean of d squared; for right-or-wrong scores the share of discordant pairs
    harm: float  # upper bound on the mean of max(d, 0), by Hoeffding-Bentkus

    @property
    def discordant(self) -> int:
        """Prompts on which the two scores differ."""
        return self.losses + self.gains

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of a certificate that say it."""
        return {
            "n": self.n,
            "losses": self.losses,
            "gains": self.gains,
            "loss": self.mean,
            "bound": self.value,
            "bound_kind": self.kind,
        }

    def within(self, budget: float) -> bool:
        """Whether the loss is certified to be `budget` at most."""
        if self.kind == EXACT:
            p = p_value(self.losses, self.gains, self.n, budget)
            return p <= 1 - self.confidence and self.value <= budget
        return self.value <= budget


def upper_bound(differences: ArrayLike, confidence: float, ternary: bool = True) -> Bound:
    """Return the upper bound on mean(d) for `differences [N]` in their order: exact if `ternary`
    and all are -1, 0 or 1, else by betting.
    """
    d = checked(differences)
    n = len(d)
    alpha = 1 - confidence
    losses = int((d > 0).sum())
    gains = int((d < 0).sum())
    kind = EXACT if ternary and right_or_wrong(d) else BETTING
    return Bound(
        value=exact_bound(losses, gains, n, alpha) if kind == EXACT else betting_bound(d, alpha),
        kind=kind,
        confidence=confidence,
        n=n,
        mean=float(d.mean()),
        losses=losses,
        gains=gains,
        spread=float((d * d).mean()),
        harm=hoeffding_bentkus(float(d.clip(0).mean()), n, alpha),
    )


def score(losses: ArrayLike, gains: ArrayLike, n: int, difference: float) -> Array:
    """Return Tango's statistic of tables `losses [...]`, `gains [...]` of n pairs; negative where
    few losses were seen.

    It is (losses - gains - n * difference) over its standard deviation, in which p_gain maximises
    the likelihood under p_loss - p_gain = `difference`.
    """
    b = np.asarray(losses, float)
    c = np.asarray(gains, float)
    # p_gain under the constraint is the larger root of 2n x^2 + Bx - C = 0, in the form that
    # cancels nothing.
    B = (2 * n - b + c) * difference - b - c
    C = c * difference * (1 - difference)
    root = np.sqrt(B * B + 8 * n * C)
    p_gain = np.where(B > 0, 2 * C / np.where(B > 0, B + root, 1.0), (root - B) / (4 * n))
    variance = n * (2 * p_gain + difference * (1 - difference))
    return np.asarray((b - c - n * difference) / np.sqrt(variance))


def discordance_region(discordant: int, n: int) -> tuple[float, float]:
    """Return the Clopper-Pearson interval that misses the true discordance with probability GAMMA
    at most.
    """
    low = beta.ppf(GAMMA / 2, discordant, n - discordant + 1) if discordant else 0.0
    high = beta.isf(GAMMA / 2, discordant + 1, n - discordant) if discordant < n else 1.0
    return float(low), float(high)


@lru_cache(maxsize=1 << 16)
def p_value(losses: int, gains: int, n: int, difference: float) -> float:
    """Return the p-value of H0: p_loss - p_gain >= `difference` (in (0, 1)), whose worst case is
    its boundary.

    It is the largest probability, over the discordances of the region, of a table at least as far
    below `difference` as the one seen, plus what region and enumeration leave out: by Berger and
    Boos this is a valid p-value for every n.
    """
    low, high = discordance_region(losses + gains, n)
    low = max(low, difference)
    if low > high:
        return GAMMA
    m_M = np.arange(binom.ppf(TAIL / 2, n, low), binom.isf(TAIL / 2, n, high) + 1)
    limit = float(score(losses, gains, n, difference)) + TIE
    most_M = largest_losses(m_M, n, difference, limit)

    def tail(angles_D: Array) -> Array:
        """P(losses <= most of their number of discordant pairs) at discordances sin^2 [D]."""
        psi_D1 = np.maximum(np.sin(angles_D) ** 2, difference)[:, None]
        loss_share_D1 = (psi_D1 + difference) / (2 * psi_D1)
        mass_DM = binom.pmf(m_M, n, psi_D1)
        return np.asarray((mass_DM * binom.cdf(most_M, m_M, loss_share_D1)).sum(-1))

    angles_D = np.linspace(np.arcsin(np.sqrt(low)), np.arcsin(np.sqrt(high)), NUISANCE_POINTS)
    coarse_D = tail(angles_D)
    top = int(coarse_D.argmax())
    around = angles_D[max(top - 1, 0)], angles_D[min(top + 1, NUISANCE_POINTS - 1)]
    fine_D = tail(np.linspace(*around, NUISANCE_POINTS // 2))
    return min(1.0, float(max(coarse_D.max(), fine_D.max())) + GAMMA + TAIL)


def largest_losses(m_M: Array, n: int, difference: float, limit: float) -> Array:
    """Return the most losses among m discordant pairs whose statistic stays within `limit` [M]; -1
    where none does.
    """
    low_M = np.full(len(m_M), -1.0)
    high_M = m_M.copy()
    while (low_M < high_M).any():
        middle_M = np.ceil((low_M + high_M) / 2)
        within_M = score(middle_M, m_M - middle_M, n, difference) <= limit
        low_M = np.where(within_M, middle_M, low_M)
        high_M = np.where(within_M, high_M, middle_M - 1)
    return low_M


@lru_cache(maxsize=4096)
def exact_bound(losses: int, gains: int, n: int, alpha: float) -> float:
    """Return the largest p_loss - p_gain in [0, 1] that `p_value` does not reject; a negative bound
    is given as 0.
    """
    mean = (losses - gains) / n
    low = max(mean, RESOLUTION)
    high = 1 - RESOLUTION
    if low >= high:
        return 1.0

    def rejected(difference: float) -> bool:
        return p_value(losses, gains, n, difference) <= alpha

    if rejected(low):
        return 0.0
    step = 1 / n
    while low + step < high and not rejected(low + step):
        low += step
        step *= 2
    bound = halved(low, min(low + step, high), RESOLUTION / 4, rejected)
    above = np.linspace(bound, min(bound + 0.25 * (bound - mean), high), SCAN_POINTS)
    for difference in above[1:].tolist():
        if not rejected(difference):
            bound = difference
    return rounded_up(bound)


def halved(low: float, high: float, width: float, rejected: Callable[[float], bool]) -> float:
    """Return the smallest rejected value between these two, up to `width`."""
    while high - low > width:
        middle = (low + high) / 2
        if rejected(middle):
            high = middle
        else:
            low = middle
    return high


def rounded_up(bound: float) -> float:
    """Return a bound as the next multiple of RESOLUTION."""
    return round(min(1.0, math.ceil(bound / RESOLUTION) * RESOLUTION), 6)


def hoeffding_bentkus(mean: float, n: int, alpha: float) -> float:
    """Return an upper bound on the mean of values in [0, 1] of which n independent ones were seen
    with this mean: the smaller one of Hoeffding's and Bentkus' p-values, inverted (arXiv
    2110.01052).
    """
    total = math.ceil(n * mean - 1e-9)

    def rejected(rate: float) -> bool:
        bentkus = math.e * float(binom.cdf(total, n, rate))
        entropy = float(rel_entr(mean, rate) + rel_entr(1 - mean, 1 - rate))
        return min(math.exp(-n * entropy), bentkus) <= alpha

    return halved(mean, 1.0, 1e-9, rejected)


def growth(d: ArrayLike, loss: float) -> Array:
    """Return the logarithm of what one prompt of each `d [N]` does to a bet on mean(d) < `loss`, by
    stake [N, S].
    """
    return np.log1p(STAKES_S * ((loss - np.asarray(d, float)) / (1 - loss))[..., None])


def wealth(log_wealth_S: Array) -> Array:
    """Return the logarithm of the wealth of all stakes together `[..., S]` -> [...]; each got the
    same share.
    """
    return np.asarray(logsumexp(log_wealth_S, axis=-1) - math.log(len(STAKES_S)))


def refutes(differences: ArrayLike, budget: float, confidence: float) -> bool:
    """Whether a loss of `budget` or more was ruled out at any point along `differences [N]`.

    Where the mean is `budget` or more, the wealth of the bet on a smaller one is a nonnegative
    supermartingale that begins at 1; by Ville's inequality it ever reaches 1 / (1 - confidence)
    with probability 1 - confidence at most (arXiv 2010.09686).
    """
    log_wealth_N = wealth(growth(checked(differences), budget).cumsum(0))
    return bool(log_wealth_N.max() >= -math.log(1 - confidence))


def betting_bound(differences: ArrayLike, alpha: float) -> float:
    """Return the smallest mean that bets refute at the best moment along `differences [N]`; a
    negative one is given as 0.
    """
    high = halved(0.0, 1.0, RESOLUTION / 4, lambda mean: refutes(differences, mean, 1 - alpha))
    return rounded_up(high) if high > RESOLUTION / 4 else 0.0


def longer_bound(
    strict: ArrayLike, loose: ArrayLike, limit: float, confidence: float
) -> float | None:
    """Return the smallest growth g at which bets refute mean(loose) >= (1 + g) mean(strict), for
    lengths [N] of up to `limit` tokens in their order; None where no g up to 9 is refuted, and
    never less than -0.9.
    """
    strict_N = np.asarray(strict, float)
    loose_N = np.asarray(loose, float)

    def refuted(g: float) -> bool:
        longest = max(1.0, 1 + g) * limit
        return refutes((loose_N - (1 + g) * strict_N) / longest, 0.0, confidence)

    return halved(-0.9, 9.0, RESOLUTION, refuted) if refuted(9.0) else None


def shorter_bound(strict: ArrayLike, loose: ArrayLike, limit: float, confidence: float) -> float:
    """Return the largest growth g at which bets refute mean(loose) <= (1 + g) mean(strict), the
    counterpart of `longer_bound`; at most 9, and -1, which always holds, where no g from -0.9 on is
    refuted.
    """
    strict_N = np.asarray(strict, float)
    loose_N = np.asarray(loose, float)

    def refuted(shrinkage: float) -> bool:
        longest = max(1.0, 1 - shrinkage) * limit
        return refutes(((1 - shrinkage) * strict_N - loose_N) / longest, 0.0, confidence)

    return -halved(-9.0, 0.9, RESOLUTION, refuted) if refuted(0.9) else -1.0


class SequentialTest:
    """Two opposite bets on one budget while prompts come in; the first that is won is the answer,
    which stays.

    Each answer is wrong with probability 1 - confidence at most, whenever one stops (see
    `refutes`), so that "within" is a certificate.
    """

    def __init__(self, budget: float, confidence: float) -> None:
        self.budget = budget
        self.enough = -math.log(1 - confidence)
        self.answer: Decision | None = None
        self.n = 0  # prompts seen until the answer was clear, or so far
        self.for_S = np.zeros(len(STAKES_S))  # logarithms of the wealth
        self.against_S = np.zeros(len(STAKES_S))

    def update(self, differences: ArrayLike) -> Decision | None:
        """Take in the next `differences [N]` in their order; returns the answer, or None while it
        is open.
        """
        d = checked(differences)
        if self.answer is not None:
            return self.answer
        for_NS = self.for_S + growth(d, self.budget).cumsum(0)
        against_NS = self.against_S + growth(-d, -self.budget).cumsum(0)
        self.for_S = for_NS[-1]
        self.against_S = against_NS[-1]
        within_N = wealth(for_NS) >= self.enough
        clear_N = within_N | (wealth(against_NS) >= self.enough)
        if not clear_N.any():
            self.n += len(d)
            return None
        first = int(clear_N.argmax())
        self.n += first + 1
        self.answer = "within" if within_N[first] else "beyond"
        return self.answer
