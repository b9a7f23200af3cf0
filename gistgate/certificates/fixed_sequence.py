"""Fixed-sequence testing: which setting of a rule may be used within each quality budget.

The settings are fixed beforehand and tested from strict to loose; testing stops at the first that fails the largest
budget. For each budget the last setting of the unbroken run of successes is kept. The confidence then holds for the
rule without a correction for the number of settings. Choosing the best of several certified rules or budgets afterwards
multiplies the error.

Three ways to stop. `planned` decodes all planned prompts and tests once. `lost` does the same, but leaves a setting as
soon as a sequential test shows that it loses the largest budget; stopping only to refuse adds no false certificate.
`clear` stops on either answer of the sequential test; the error is shared, half for it and half for the test behind the
last prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from gistgate.certificates.bounds import BETTING, EXACT, Answer, Bound, SequentialTest, betting_bound, upper_bound
from gistgate.certificates.outcomes import NOTHING, Decoded
from gistgate.certificates.planning import confidence_of_test, fewest, needed_n, plug_in_certifies
from gistgate.core.utils import UserError

Stop = Literal["planned", "lost", "clear"]


@dataclass(frozen=True)
class Tested:
    """One setting of the sequence; the tuples follow the order of the budgets."""

    decoded: Decoded  # all that was decoded of the setting
    bounds: tuple[Bound, ...]  # the bound that decided each budget
    within: tuple[bool, ...]  # whether the bound keeps each budget
    answers: tuple[Answer | None, ...]  # of the sequential tests; None where one stayed open or does not count


@dataclass(frozen=True)
class Verdicts:
    """What a fixed sequence showed for each budget."""

    budgets: tuple[float, ...]  # largest mean losses, each a claim of its own
    tested: tuple[Tested, ...]  # settings from strict to loose; the last may be the one that failed

    def passed(self, budget: float) -> int | None:
        """Index of the loosest setting that keeps a budget while all before it do; None where the first fails."""
        at, kept = self.budgets.index(budget), 0
        while kept < len(self.tested) and self.tested[kept].within[at]:
            kept += 1
        return kept - 1 if kept else None

    def shown(self, budget: float) -> Tested:
        """The setting that is kept for a budget, or the strictest one, which was refused."""
        return self.tested[self.passed(budget) or 0]

    def bound(self, budget: float) -> Bound:
        """The bound of that setting."""
        return self.shown(budget).bounds[self.budgets.index(budget)]

    def needed(self, budget: float) -> int | None:
        """Prompts that would certify a refused budget at the strictest setting; None where no number would."""
        first, bound = self.tested[0], self.tested[0].bounds[self.budgets.index(budget)]
        if self.passed(budget) is not None or bound.mean >= budget:
            return None
        if bound.kind == EXACT:
            return needed_n(budget, bound.confidence, bound.spread, bound.mean, more_than=bound.n)
        seen = first.decoded.differences
        return fewest(lambda n: plug_in_certifies(np.resize(seen, n), budget, bound.confidence), above=bound.n)

    def refusal(self, budget: float) -> str | None:
        """Why a budget has no certificate and what would help; None where it has one."""
        if self.passed(budget) is not None:
            return None
        at, bound = self.budgets.index(budget), self.bound(budget)
        seen = (
            f"{bound.n} prompts with a loss of {bound.mean:.2%} and {bound.discordant / bound.n:.2%} differing answers"
        )
        if self.tested[0].answers[at] == "beyond":
            return f"A budget of {budget:.2%} is lost at the strictest setting tested: {seen} leave no doubt."
        need = self.needed(budget)
        remedy = f"about {need} prompts would do" if need else "more prompts would not help; take a larger budget"
        return f"A budget of {budget:.2%} cannot be certified: {seen} bound it by {bound.value:.2%}; {remedy}."


def check_stop(stop: str) -> None:
    """Refuse an unknown way to stop."""
    if stop not in get_args(Stop):
        raise UserError(f"There is no way to stop called '{stop}'. Use one of: {', '.join(get_args(Stop))}.")


def fixed_sequence(
    settings: Iterable[Iterable[Decoded]],
    budgets: Sequence[float],
    confidence: float,
    stop: Stop = "planned",
    ternary: bool = True,
) -> Verdicts:
    """Test settings, given by their chunks, from strict to loose; the first that fails the largest budget is the last.

    Both iterables are read lazily: a setting behind the first failure and a chunk behind a clear answer are never asked
    for. `ternary` says that the score can only differ by -1, 0 or 1, so that the exact bound may be used.
    """
    check_stop(stop)
    tested: list[Tested] = []
    for chunks in settings:
        tested.append(try_setting(chunks, budgets, confidence, stop, ternary))
        if not tested[-1].within[int(np.argmax(budgets))]:
            break
    return Verdicts(tuple(budgets), tuple(tested))


def try_setting(
    chunks: Iterable[Decoded], budgets: Sequence[float], confidence: float, stop: Stop, ternary: bool = True
) -> Tested:
    """Take in chunks until no budget is open any more, then test what the sequential tests left open."""
    sure = confidence_of_test(stop, confidence)
    tests, largest = [SequentialTest(budget, sure) for budget in budgets], int(np.argmax(budgets))
    done = NOTHING
    for chunk in chunks:
        done = done + chunk
        if stop == "planned":
            continue
        found = [test.update(chunk.differences) for test in tests]
        if found[largest] == "beyond" or (stop == "clear" and None not in found):
            break
    # Under `lost` a sequential test refuses and never certifies.
    answers = tuple(test.answer if stop == "clear" or test.answer == "beyond" else None for test in tests)
    plain = upper_bound(done.differences, sure, ternary)
    bounds = [
        replace(plain, value=betting_bound(done.differences, 1 - sure), kind=BETTING) if answer == "within" else plain
        for answer in answers
    ]
    within = tuple(
        answer == "within" or (answer is None and bound.within(budget))
        for answer, bound, budget in zip(answers, bounds, budgets, strict=True)
    )
    return Tested(done, tuple(bounds), within, answers)
