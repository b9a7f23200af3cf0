"""Fixed-sequence testing: settings, fixed beforehand, from strict to loose until one fails the
largest budget.

For each budget the last of the unbroken run of successes is kept. The confidence then holds for the
rule without a correction for the number of settings: a false certificate needs a false success at
the first setting of the sequence that loses more than the budget, which is one test (fixed-sequence
testing as in arXiv 2110.01052; the sequence may not depend on the tested prompts).
docs/certificates.md says when the decoding of a setting ends (`Stop`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from gistgate.certificates.bounds import (
    EXACT,
    Bound,
    Decision,
    SequentialTest,
    betting_bound,
    longer_bound,
    refutes,
    upper_bound,
)
from gistgate.certificates.outcomes import MOST_LOST, NOTHING, Decoded
from gistgate.certificates.planning import Stop, confidence_of_test, fewest, needed_n


@dataclass(frozen=True)
class Tested:
    """One setting of the sequence."""

    decoded: Decoded  # all that was decoded of the setting
    bounds: Mapping[float, Bound]  # the bound that decided each budget
    within: Mapping[float, bool]  # whether the bound keeps each budget
    answers: Mapping[float, Decision | None]
    """Answers of the sequential tests by budget; None where one stayed open or does not count."""
    growth_bound: float | None = None
    """Upper bound on the growth of answers, as a share; None where nothing bounds it."""
    may_grow: bool = True  # whether it keeps the largest growth
    fluency_bound: float | None = None
    """Upper bound on the loss of log-probability in nats per token; None where nobody asked."""
    is_fluent: bool = True  # whether it keeps the largest such loss


@dataclass(frozen=True)
class Verdicts:
    """What a fixed sequence showed for each budget."""

    budgets: tuple[float, ...]  # largest mean losses, each a claim of its own
    tested: tuple[Tested, ...]  # settings from strict to loose; the last may be the one that failed

    def passed(self, budget: float) -> int | None:
        """Index of the loosest setting that keeps a budget while all before it do; None where the
        first fails.
        """
        successes = list(takewhile(lambda setting: setting.within[budget], self.tested))
        return len(successes) - 1 if successes else None

    def shown(self, budget: float) -> Tested:
        """The setting that is kept for a budget, or the strictest one, which was refused."""
        return self.tested[self.passed(budget) or 0]

    def bound(self, budget: float) -> Bound:
        """The bound of that setting."""
        return self.shown(budget).bounds[budget]

    def needed(self, budget: float) -> int | None:
        """Prompts that would certify a refused budget at the strictest setting; None where no
        number would.
        """
        bound = self.bound(budget)
        if self.passed(budget) is not None or bound.mean >= budget:
            return None
        if bound.kind == EXACT:
            return needed_n(budget, bound.confidence, bound.spread, bound.mean, more_than=bound.n)
        seen = self.tested[0].decoded.differences
        return fewest(lambda n: refutes(np.resize(seen, n), budget, bound.confidence), bound.n)

    def refusal(self, budget: float) -> str | None:
        """Why a budget has no certificate and what would help; None where it has one."""
        if self.passed(budget) is not None:
            return None
        strictest = self.tested[0]
        if not strictest.may_grow:
            growth = (
                "the growth of answers is not bounded"
                if strictest.growth_bound is None
                else f"answers may grow by {strictest.growth_bound:.2%}"
            )
            return (
                f"At the strictest setting tested {growth}, more than is allowed. Take more"
                " prompts, or allow more."
            )
        if not strictest.is_fluent:
            return (
                "At the strictest setting tested a token may be"
                f" {strictest.fluency_bound:.3f} nats less probable, more than is allowed. Take"
                " more prompts, or allow more."
            )
        bound = self.bound(budget)
        seen = (
            f"{bound.n} prompts with a loss of {bound.mean:.2%} and"
            f" {bound.discordant / bound.n:.2%} differing answers"
        )
        if strictest.answers[budget] == "beyond":
            return (
                f"A budget of {budget:.2%} is lost at the strictest setting tested: {seen} leave no"
                " doubt."
            )
        remedy = "more prompts would not help; take a larger budget"
        if need := self.needed(budget):
            remedy = f"about {need} prompts would do"
        return (
            f"A budget of {budget:.2%} cannot be certified: {seen} bound it by {bound.value:.2%};"
            f" {remedy}."
        )


def fixed_sequence(
    settings: Iterable[Iterable[Decoded]],
    budgets: Sequence[float],
    confidence: float,
    stop: Stop = "planned",
    ternary: bool = True,
    growth: float | None = None,
    fluency: float | None = None,
) -> Verdicts:
    """Test settings, given by their chunks from strict to loose, which are read lazily; the first
    that fails the largest budget is the last.

    `ternary` says whether the score can only differ by -1, 0 or 1, so that the exact bound may be
    used. `growth`, the largest growth of the mean length, and `fluency`, the largest loss of
    log-probability in nats per token, are claims beside every budget; None: any.
    """
    tested: list[Tested] = []
    for chunks in settings:
        tested.append(try_setting(chunks, budgets, confidence, stop, ternary, growth, fluency))
        if not tested[-1].within[max(budgets)]:
            break
    return Verdicts(tuple(budgets), tuple(tested))


def try_setting(
    chunks: Iterable[Decoded],
    budgets: Sequence[float],
    confidence: float,
    stop: Stop,
    ternary: bool = True,
    growth: float | None = None,
    fluency: float | None = None,
) -> Tested:
    """Take in chunks until no budget is open any more, then test what the sequential tests left
    open.
    """
    sure = confidence_of_test(stop, confidence, ternary)
    tests = [SequentialTest(budget, sure) for budget in budgets]
    decoded = decode_until_clear(chunks, tests, stop)
    # Under `lost` a sequential test refuses and never certifies.
    answers = {
        test.budget: test.answer if stop == "clear" or test.answer == "beyond" else None
        for test in tests
    }
    usual = upper_bound(decoded.differences, sure, ternary)
    longer = growth_bound(decoded, sure)
    lost = fluency_bound(decoded, sure)
    # All claims have to hold, each at its confidence, so that none needs a correction for the
    # others.
    may_grow = growth is None or (longer is not None and longer <= growth)
    is_fluent = fluency is None or (lost is not None and lost <= fluency)
    bounds = dict.fromkeys(budgets, usual)
    within = {}
    for budget, answer in answers.items():
        if answer == "within":
            bounds[budget] = upper_bound(decoded.differences, sure, ternary=False)
        is_kept = usual.within(budget) if answer is None else answer == "within"
        within[budget] = may_grow and is_fluent and is_kept
    return Tested(decoded, bounds, within, answers, longer, may_grow, lost, is_fluent)


def decode_until_clear(
    chunks: Iterable[Decoded], tests: Sequence[SequentialTest], stop: Stop
) -> Decoded:
    """Take in chunks until the tests say what `stop` waits for, or to the end."""
    largest = max(tests, key=lambda test: test.budget)
    decoded = NOTHING
    for chunk in chunks:
        decoded += chunk
        if stop == "planned":
            continue
        answers = [test.update(chunk.differences) for test in tests]
        if largest.answer == "beyond" or (stop == "clear" and None not in answers):
            break
    return decoded


def growth_bound(decoded: Decoded, confidence: float) -> float | None:
    """Upper bound on the growth of the mean length, as a share; None where no lengths are known."""
    strict, loose, limit = decoded.tokens.T
    return longer_bound(strict, loose, limit.max(), confidence) if len(limit) else None


def fluency_bound(decoded: Decoded, confidence: float) -> float | None:
    """Upper bound on the loss of log-probability in nats per token; None where nobody asked."""
    if not len(decoded.fluency):
        return None
    return MOST_LOST * betting_bound(decoded.fluency / MOST_LOST, 1 - confidence)
