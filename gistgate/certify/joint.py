"""The loss of one or more tasks, and one verdict about all of them.

Each of T tasks is tested once, on all its documents, with the error divided by T (Bonferroni).
So all upper bounds hold together, and with them two sentences: "each loss is at most its bound",
and "the mean loss is at most the mean of the bounds". The lower bounds hold together in the same
way. A wrong PASS needs a loss beyond the budget and a wrong FAIL one within it, so that no more
than one of both can happen, and neither pays for the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Literal

import numpy as np

from gistgate.certificates.bounds import (
    RESOLUTION,
    Array,
    halved,
    refutes,
    right_or_wrong,
)
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.ledger import LEAST_ERROR
from gistgate.certificates.outcomes import Decoded
from gistgate.certify.paired import Record, named
from gistgate.core.utils import UserError

Verdict = Literal["PASS", "FAIL", "UNDECIDED"]
How = Literal["each", "mean"]
"""Whether each task keeps the budget, or the mean of the tasks' losses does."""


@dataclass(frozen=True)
class Row:
    """What the documents of one task say."""

    task: str
    metric: str
    n: int
    """Documents."""
    losses: int
    """Documents on which the candidate scored lower."""
    gains: int
    """Documents on which it scored higher."""
    differing: int
    """Documents with different answers, scored alike or not."""
    baseline: float
    """Mean score of the baseline."""
    candidate: float
    """Mean score of the candidate."""
    loss: float
    """Mean of baseline - candidate score."""
    bound: float
    """Upper bound on the loss."""
    bound_kind: str
    lower: float
    """Lower bound on the loss, by betting."""
    confidence: float
    """Probability with which the bound holds; the error of all rows adds up to that of the
    verdict.
    """
    verdict: Verdict
    needed: int | None
    """Documents that would be enough, about; None where the row is decided or none would be."""


@dataclass(frozen=True)
class Joint:
    """One verdict about all rows."""

    rows: tuple[Row, ...]
    how: How
    budget: float
    confidence: float
    loss: float
    """The largest loss of a row, or their mean."""
    bound: float
    """Upper bound on that."""
    lower: float
    """Lower bound on that."""
    verdict: Verdict
    needed: int | None
    """Documents that would be enough, about: of the row that needs most, or of all rows."""

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        about = f" for {self.how} of {len(self.rows)} tasks" if len(self.rows) > 1 else ""
        about = about.replace("for mean", "for the mean")
        largest = "largest " if about and self.how == "each" else ""
        return (
            f"{self.verdict} budget {points(self.budget)} points{about}: {largest}{figures(self)}"
        )


def figures(verdict: Row | Joint) -> str:
    """The loss with the bound that counts, and what would decide an open verdict."""
    limit = f"at most {points(verdict.bound, up=True)}"
    if verdict.verdict == "FAIL":
        limit = f"at least {points(verdict.lower, up=False)}"
    line = f"loss {points(verdict.loss)}, {limit} at {100 * verdict.confidence:.4g} %"
    if verdict.verdict != "UNDECIDED":
        return line
    if verdict.needed is None:
        return f"{line}; more prompts would not show it kept, take a larger budget"
    return f"{line}; about {verdict.needed:,} prompts would do"


def points(share: float, up: bool | None = None) -> str:
    """A share in hundredths, with two digits at most, of which the last is rounded up, down or to
    the nearest.
    """
    steps = 1e4 * share
    if up is None:
        return str(round(steps) / 100 + 0.0)
    return str((math.ceil(steps - 1e-6) if up else math.floor(steps + 1e-6)) / 100 + 0.0)


def judged(
    records: Sequence[Record], metrics: dict[str, str], budget: float, confidence: float, how: How
) -> Joint:
    """Test all tasks of the records, which lie together by task, and give the verdict."""
    tasks = [list(rows) for _, rows in groupby(records, key=lambda record: record.task)]
    error = (1 - confidence) / len(tasks)
    if error <= LEAST_ERROR:
        raise UserError(
            f"{len(tasks)} tasks leave an error of {error:.2g} for each, which no number of prompts"
            " can show. Name fewer tasks (--task), or lower --confidence."
        )
    rows = [tested(task, metrics[task[0].task], budget, 1 - error) for task in tasks]
    check_something_to_lose(rows, budget, how)
    if how == "mean":
        return mean_verdict(rows, budget, confidence)
    return verdict_on_each(rows, budget, confidence)


def check_something_to_lose(rows: Sequence[Row], budget: float, how: How) -> None:
    """Refuse a baseline that cannot lose more than the budget, because a PASS would say nothing."""
    poor = [row.task for row in rows if row.baseline <= budget]
    if how == "mean" and fmean(row.baseline for row in rows) > budget:
        poor = []
    if poor:
        raise UserError(
            f"The baseline has nothing to lose: it scores no more than the budget in {named(poor)}."
            " Choose other tasks (--task), another metric (--metric) or a smaller budget."
        )


def tested(records: Sequence[Record], metric: str, budget: float, confidence: float) -> Row:
    """Test one task once, on all of its documents."""
    d = np.array([record.difference for record in records])
    verdicts = fixed_sequence(
        [[Decoded(d)]], [budget], confidence, "planned", ternary=right_or_wrong(d)
    )
    bound = verdicts.bound(budget)
    lower = lower_bound(d, confidence)
    verdict: Verdict = "UNDECIDED"
    if verdicts.passed(budget) is not None:
        verdict = "PASS"
    elif lower > budget:
        verdict = "FAIL"
    return Row(
        task=records[0].task,
        metric=metric,
        n=len(records),
        losses=bound.losses,
        gains=bound.gains,
        differing=sum(record.differs for record in records),
        baseline=fmean(record.baseline for record in records),
        candidate=fmean(record.candidate for record in records),
        loss=bound.mean,
        bound=bound.value,
        bound_kind=bound.kind,
        lower=lower,
        confidence=confidence,
        verdict=verdict,
        needed=enough(verdict, bound.mean, bound.value, budget, len(records)),
    )


def lower_bound(differences: Array, confidence: float) -> float:
    """The largest mean loss that bets refute from below: the betting bound of the negated
    differences, which the exact bound has none of below 0.
    """
    mean = partial(refutes, -differences, confidence=confidence)
    negated = halved(-1.0, 1.0, RESOLUTION / 4, mean)
    return max(-1.0, -math.ceil(negated / RESOLUTION) * RESOLUTION)


def enough(verdict: Verdict, loss: float, bound: float, budget: float, n: int) -> int | None:
    """Documents, in two digits, that would show the budget kept at this loss, as the distance of
    bound and loss falls with the root of their number; None where it is decided or in vain.
    """
    if verdict != "UNDECIDED" or loss >= budget:
        return None
    exact = n * ((bound - loss) / (budget - loss)) ** 2
    unit: int = 10 ** max(0, math.floor(math.log10(exact)) - 1)
    return math.ceil(exact / unit) * unit


def verdict_on_each(rows: Sequence[Row], budget: float, confidence: float) -> Joint:
    """Whether each task keeps the budget; one that is proven to lose more fails all."""
    verdicts = {row.verdict for row in rows}
    verdict: Verdict = "PASS"
    if "FAIL" in verdicts:
        verdict = "FAIL"
    elif "UNDECIDED" in verdicts:
        verdict = "UNDECIDED"
    undecided = [row for row in rows if row.verdict == "UNDECIDED"]
    needs = [row.needed for row in undecided if row.needed is not None]
    return Joint(
        rows=tuple(rows),
        how="each",
        budget=budget,
        confidence=confidence,
        loss=max(row.loss for row in rows),
        bound=max(row.bound for row in rows),
        lower=max(row.lower for row in rows),
        verdict=verdict,
        needed=max(needs) if verdict == "UNDECIDED" and len(needs) == len(undecided) else None,
    )


def mean_verdict(rows: Sequence[Row], budget: float, confidence: float) -> Joint:
    """Whether the mean of the tasks' losses, all of equal weight, keeps the budget."""
    loss = fmean(row.loss for row in rows)
    bound = fmean(row.bound for row in rows)
    lower = fmean(row.lower for row in rows)
    verdict: Verdict = "UNDECIDED"
    if bound <= budget:
        verdict = "PASS"
    elif lower > budget:
        verdict = "FAIL"
    return Joint(
        rows=tuple(rows),
        how="mean",
        budget=budget,
        confidence=confidence,
        loss=loss,
        bound=bound,
        lower=lower,
        verdict=verdict,
        needed=enough(verdict, loss, bound, budget, sum(row.n for row in rows)),
    )
