"""Fixed-sequence testing: settings, fixed beforehand, from strict to loose until one fails the
largest budget.

For each budget the last of the unbroken run of successes is kept; the confidence then holds for the
rule without a correction for the number of settings. docs/certificates.md says when the decoding of
a setting ends (`Stop`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import numpy as np

from gistgate.certificates import bounds
from gistgate.certificates.bounds import BETTING, EXACT, Answer, Bound, SequentialTest
from gistgate.certificates.outcomes import NOTHING, Decoded
from gistgate.certificates.planning import confidence_of_test, fewest, needed_n

Stop = Literal["planned", "lost", "clear"]


@dataclass(frozen=True)
class Tested:
    """One setting of the sequence; the tuples follow the order of the budgets."""

    decoded: Decoded  # all that was decoded of the setting
    bounds: tuple[Bound, ...]  # the bound that decided each budget
    within: tuple[bool, ...]  # whether the bound keeps each budget
    answers: tuple[
        Answer | None, ...
    ]  # of the sequential tests; None where one stayed open or does not count
    growth_bound: float | None = (
        None  # upper bound on the growth of answers; None where nothing bounds it
    )
    may_grow: bool = True  # whether it keeps the largest growth


@dataclass(frozen=True)
class Verdicts:
    """What a fixed sequence showed for each budget."""

    budgets: tuple[float, ...]  # largest mean losses, each a claim of its own
    tested: tuple[Tested, ...]  # settings from strict to loose; the last may be the one that failed

    def passed(self, budget: float) -> int | None:
        """Index of the loosest setting that keeps a budget while all before it do; None where the
        first fails.
        """
        at = self.budgets.index(budget)
        kept = len(list(takewhile(lambda one: one.within[at], self.tested)))
        return kept - 1 if kept else None

    def shown(self, budget: float) -> Tested:
        """The setting that is kept for a budget, or the strictest one, which was refused."""
        return self.tested[self.passed(budget) or 0]

    def bound(self, budget: float) -> Bound:
        """The bound of that setting."""
        return self.shown(budget).bounds[self.budgets.index(budget)]

    def needed(self, budget: float) -> int | None:
        """Prompts that would certify a refused budget at the strictest setting; None where no
        number would.
        """
        bound = self.tested[0].bounds[self.budgets.index(budget)]
        if self.passed(budget) is not None or bound.mean >= budget:
            return None
        if bound.kind == EXACT:
            return needed_n(budget, bound.confidence, bound.spread, bound.mean, more_than=bound.n)
        seen = self.tested[0].decoded.differences
        return fewest(
            lambda n: bounds.refutes(np.resize(seen, n), budget, bound.confidence), above=bound.n
        )

    def refusal(self, budget: float) -> str | None:
        """Why a budget has no certificate and what would help; None where it has one."""
        if self.passed(budget) is not None:
            return None
        at = self.budgets.index(budget)
        bound = self.bound(budget)
        if not self.tested[0].may_grow:
            longer = self.tested[0].growth_bound
            seen = (
                "the growth of answers is not bounded"
                if longer is None
                else f"answers may grow by {longer:.2%}"
            )
            return (
                f"At the strictest setting tested {seen}, more than is allowed. Take more prompts,"
                " or allow more."
            )
        share = bound.discordant / bound.n
        seen = (
            f"{bound.n} prompts with a loss of {bound.mean:.2%} and {share:.2%} differing answers"
        )
        if self.tested[0].answers[at] == "beyond":
            return (
                f"A budget of {budget:.2%} is lost at the strictest setting tested: {seen} leave no"
                " doubt."
            )
        need = self.needed(budget)
        remedy = (
            f"about {need} prompts would do"
            if need
            else "more prompts would not help; take a larger budget"
        )
        return (
            f"A budget of {budget:.2%} cannot be certified: {seen} bound it by {bound.value:.2%};"
            f" {remedy}."
        )


def fixed_sequence(
    settings: Iterable[
        Iterable[Decoded]
    ],  # chunks of each from strict to loose, read lazily, never behind a failure
    budgets: Sequence[float],
    confidence: float,
    stop: Stop = "planned",
    # whether the score can only differ by -1, 0 or 1, so that the exact bound may be used
    ternary: bool = True,
    growth: (
        float | None
    ) = None,  # largest growth of the mean length, a claim beside every budget; None: any
) -> Verdicts:
    """Test settings, given by their chunks; the first that fails the largest budget is the last."""
    tested: list[Tested] = []
    for chunks in settings:
        tested.append(try_setting(chunks, budgets, confidence, stop, ternary, growth))
        if not tested[-1].within[int(np.argmax(budgets))]:
            break
    return Verdicts(tuple(budgets), tuple(tested))


def try_setting(
    chunks: Iterable[Decoded],
    budgets: Sequence[float],
    confidence: float,
    stop: Stop,
    ternary: bool = True,
    growth: float | None = None,
) -> Tested:
    """Take in chunks until no budget is open any more, then test what the sequential tests left
    open.
    """
    sure = confidence_of_test(stop, confidence, ternary)
    tests = [SequentialTest(budget, sure) for budget in budgets]
    largest = int(np.argmax(budgets))
    done = NOTHING
    for chunk in chunks:
        done = done + chunk
        if stop == "planned":
            continue
        now = [test.update(chunk.differences) for test in tests]
        if now[largest] == "beyond" or (stop == "clear" and None not in now):
            break
    # Under `lost` a sequential test refuses and never certifies.
    answers = tuple(
        test.answer if stop == "clear" or test.answer == "beyond" else None for test in tests
    )
    plain = bounds.upper_bound(done.differences, sure, ternary)
    won = plain
    if "within" in answers:
        won = replace(plain, value=bounds.betting_bound(done.differences, 1 - sure), kind=BETTING)
    found = tuple(won if answer == "within" else plain for answer in answers)
    strict, loose, limit = done.tokens.T
    longer = bounds.longer_bound(strict, loose, limit.max(), sure) if len(limit) else None
    may_grow = growth is None or (longer is not None and longer <= growth)
    # Both claims have to hold, each at its confidence, so that neither needs a correction for the
    # other.
    within = tuple(
        may_grow and (answer == "within" or (answer is None and bound.within(budget)))
        for answer, bound, budget in zip(answers, found, budgets, strict=True)
    )
    return Tested(done, found, within, answers, longer, may_grow)
