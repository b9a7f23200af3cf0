"""Fixed-sequence testing: which setting of a rule may be used within each quality budget.

The settings are fixed beforehand and tested from strict to loose; testing stops at the first that fails the largest
budget. For each budget the last setting of the unbroken run of successes is kept. The confidence then holds for the
rule without a correction for the number of settings. Choosing the best of several certified rules or budgets afterwards
multiplies the error.

Three ways to stop. `planned` decodes all planned prompts and tests once. `lost` does the same, but leaves a setting as
soon as a wager shows that it loses the largest budget; stopping only to refuse adds no false certificate. `clear` stops
on either answer of the wager; the error is shared, half for the wager and half for the test behind the last prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from gistgate.certificates.bounds import BETTING, EXACT, Answer, Bound, Wager, betting_bound, upper_bound
from gistgate.certificates.outcomes import NOTHING, Decoded
from gistgate.certificates.planning import fewest, needed_n, plug_in_certifies, wager_confidence
from gistgate.core.utils import UserError

Stop = Literal["planned", "lost", "clear"]


@dataclass(frozen=True)
class Tested:
    """One setting of the sequence."""

    decoded: Decoded
    """All that was decoded of the setting."""
    bounds: tuple[Bound, ...]
    """The bound that decided each budget, in the order of the budgets."""
    within: tuple[bool, ...]
    """Whether the bound keeps each budget."""
    wagered: tuple[Answer | None, ...]
    """The answer of the wager on each budget; None where it stayed open or does not count."""


@dataclass(frozen=True)
class Verdicts:
    """What a fixed sequence showed for each budget."""

    budgets: tuple[float, ...]
    """Largest mean losses, each a claim of its own."""
    tested: tuple[Tested, ...]
    """Settings from strict to loose; the last may be the one that failed."""

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
            return needed_beyond(bound, budget)
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
        if self.tested[0].wagered[at] == "beyond":
            return f"A budget of {budget:.2%} is lost at the strictest setting tested: {seen} leave no doubt."
        need = self.needed(budget)
        remedy = f"about {need} prompts would do" if need else "more prompts would not help; take a larger budget"
        return f"A budget of {budget:.2%} cannot be certified: {seen} bound it by {bound.value:.2%}; {remedy}."


def needed_beyond(bound: Bound, budget: float) -> int | None:
    """How many prompts would certify `budget` where those behind `bound` did not, were their rates to stay."""
    return needed_n(budget, bound.confidence, bound.spread, bound.mean, bound.kind == EXACT, more_than=bound.n)


def check_stop(stop: str) -> None:
    """Raise UserError unless that is a way to stop."""
    if stop not in get_args(Stop):
        raise UserError(f"There is no way to stop called '{stop}'. Use one of: {', '.join(get_args(Stop))}.")


def fixed_sequence(
    settings: Iterable[Iterable[Decoded]],
    budgets: Sequence[float],
    confidence: float,
    stop: Stop = "planned",
    ternary: bool = True,
) -> Verdicts:
    """Test settings from strict to loose; the first that fails the largest budget is the last.

    Args:
        settings: the chunks of each setting. Both iterables are read lazily: a setting behind the first failure and a
            chunk behind a clear answer are never asked for.
        budgets: largest mean losses to certify.
        confidence: probability with which each certificate holds.
        stop: when to leave a setting early.
        ternary: whether the score can only differ by -1, 0 or 1, so that the exact bound may be used.

    Raises:
        UserError: an unknown way to stop.
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
    """Take in chunks until no budget is open any more, then test what the wagers left open."""
    sure = wager_confidence(stop, confidence)
    wagers = [Wager(budget, sure) for budget in budgets]
    done = NOTHING
    for chunk in chunks:
        done = done + chunk
        if stop == "planned":
            continue
        for wager in wagers:
            wager.see_all(chunk.differences)
        if is_over(wagers, budgets, stop):
            break
    answers = tuple(counted(wager.answer, stop) for wager in wagers)
    plain = upper_bound(done.differences, sure, ternary)
    bounds = tuple(betting(plain, done, sure) if answer == "within" else plain for answer in answers)
    within = tuple(
        answer == "within" or (answer is None and bound.within(budget))
        for answer, bound, budget in zip(answers, bounds, budgets, strict=True)
    )
    return Tested(done, bounds, within, answers)


def counted(answer: Answer | None, stop: Stop) -> Answer | None:
    """The answer of a wager where it may decide: under `lost` it refuses and never certifies."""
    return answer if stop == "clear" or answer == "beyond" else None


def is_over(wagers: Sequence[Wager], budgets: Sequence[float], stop: Stop) -> bool:
    """Whether more prompts can change nothing."""
    if wagers[int(np.argmax(budgets))].answer == "beyond":
        return True
    return stop == "clear" and all(wager.answer is not None for wager in wagers)


def betting(plain: Bound, done: Decoded, confidence: float) -> Bound:
    """The bound of the wager itself on the same prompts."""
    return replace(plain, value=betting_bound(done.differences, 1 - confidence), kind=BETTING)
