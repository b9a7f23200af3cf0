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
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np

from gistgate.certificates.bounds import right_or_wrong
from gistgate.certificates.ledger import LEAST_ERROR
from gistgate.certificates.planning import Stop
from gistgate.certify.claims import CLAIMS, Claim, Verdict
from gistgate.certify.paired import Record, named
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.certify.card import Card

How = Literal["each", "mean"]
"""Whether each task keeps the budget, or the mean of the tasks' losses does."""


@dataclass(frozen=True)
class Design:
    """What is fixed of a test before it begins."""

    claim: str = "score"
    """One of `CLAIMS`."""
    stop: Stop = "planned"
    """When the test ended early."""
    ternary: bool | None = None
    """Whether differences are -1, 0 or 1, so that the exact bound decides; None: as they are, which
    is sound where no test shares the error."""


@dataclass(frozen=True)
class Row:
    """What the documents of one task say."""

    task: str
    claim: str
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
    """Mean of what is compared of the baseline: its score, if the claim is about scores."""
    candidate: float
    """The same of the candidate."""
    loss: float
    """Mean of baseline - candidate score, share of changed answers, or growth of the mean
    length."""
    bound: float | None
    """Upper bound on the loss; None where so few documents bound nothing."""
    bound_kind: str
    lower: float
    """Lower bound on the loss, by betting."""
    confidence: float
    """Probability with which the verdict holds; the error of all rows adds up to that of the joint
    one."""
    tested_at: float
    """Confidence of the upper bound, higher where an early end shares the error with it."""
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
    claim: str
    loss: float
    """The largest loss of a row, or their mean."""
    bound: float | None
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
            f"{self.verdict} budget {points(self.budget)} {CLAIMS[self.claim].unit}{about}:"
            f" {largest}{figures(self)}"
        )


def figures(verdict: Row | Joint) -> str:
    """The loss with the bound that counts, and what would decide an open verdict."""
    quantity = CLAIMS[verdict.claim].words[0]
    line = f"{quantity} {points(verdict.loss)}, {limit_of(verdict)}"
    if verdict.verdict != "UNDECIDED":
        return line
    if verdict.needed is None:
        return f"{line}; more prompts would not show it kept, take a larger budget"
    return f"{line}; about {verdict.needed:,} prompts would do"


def limit_of(verdict: Row | Joint | Card) -> str:
    """The bound that counts, with its confidence."""
    limit = "not bounded"
    if verdict.bound is not None:
        limit = f"at most {points(verdict.bound, up=True)}"
    if verdict.verdict == "FAIL":
        limit = f"at least {points(verdict.lower, up=False)}"
    return f"{limit} at {100 * verdict.confidence:.4g} %"


def points(share: float, up: bool | None = None) -> str:
    """A share in hundredths, with two digits at most, of which the last is rounded up, down or to
    the nearest.
    """
    steps = 1e4 * share
    if up is None:
        return str(round(steps) / 100 + 0.0)
    return str((math.ceil(steps - 1e-6) if up else math.floor(steps + 1e-6)) / 100 + 0.0)


def judged(
    records: Sequence[Record],
    metrics: dict[str, str],
    budget: float,
    confidence: float,
    how: How,
    design: Design = Design(),
) -> Joint:
    """Test all tasks of the records, which lie together by task, and give the verdict."""
    tasks = [list(rows) for _, rows in groupby(records, key=lambda record: record.task)]
    error = (1 - confidence) / len(tasks)
    if error <= LEAST_ERROR:
        raise UserError(
            f"{len(tasks)} tasks leave an error of {error:.2g} for each, which no number of prompts"
            " can show. Name fewer tasks (--task), or lower --confidence."
        )
    claim = CLAIMS[design.claim](budget)
    rows = [tested(task, metrics[task[0].task], claim, 1 - error, design) for task in tasks]
    if claim.is_scored:
        check_something_to_lose(rows, budget, how)
    return joined(rows, budget, confidence, how)


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


def tested(
    records: Sequence[Record], metric: str, claim: Claim, confidence: float, design: Design
) -> Row:
    """Test one task once, on all of its documents."""
    pairs_N2 = np.array([[record.baseline, record.candidate] for record in records])
    harm_N = claim.harm(pairs_N2)
    ternary = right_or_wrong(harm_N) if design.ternary is None else design.ternary
    figures = claim.test(pairs_N2, confidence, design.stop, ternary)
    baseline, candidate = pairs_N2.mean(0).tolist()
    return Row(
        task=records[0].task,
        claim=claim.id,
        metric=metric,
        n=len(records),
        losses=int((harm_N > 0).sum()),
        gains=int((harm_N < 0).sum()),
        differing=sum(record.differs for record in records),
        baseline=baseline,
        candidate=candidate,
        **vars(figures),
        confidence=confidence,
        needed=enough(figures.verdict, figures.loss, figures.bound, claim.budget, len(records)),
    )


def enough(verdict: Verdict, loss: float, bound: float | None, budget: float, n: int) -> int | None:
    """Documents, in two digits, that would show the budget kept at this loss, as the distance of
    bound and loss falls with the root of their number; None where it is decided or in vain.
    """
    if verdict != "UNDECIDED" or loss >= budget or bound is None:
        return None
    exact = n * ((bound - loss) / (budget - loss)) ** 2
    unit: int = 10 ** max(0, math.floor(math.log10(exact)) - 1)
    return math.ceil(exact / unit) * unit


def joined(rows: Sequence[Row], budget: float, confidence: float, how: How) -> Joint:
    """One verdict about the rows: each has to keep the budget, or their mean, all of equal
    weight.
    """
    combined = max if how == "each" else fmean
    bounds = [row.bound for row in rows if row.bound is not None]
    loss = float(combined(row.loss for row in rows))
    bound = float(combined(bounds)) if len(bounds) == len(rows) else None
    lower = float(combined(row.lower for row in rows))
    if how == "each":
        verdict, needed = verdict_on_each(rows)
    else:
        verdict = "UNDECIDED"
        if bound is not None and bound <= budget:
            verdict = "PASS"
        elif lower > budget:
            verdict = "FAIL"
        needed = enough(verdict, loss, bound, budget, sum(row.n for row in rows))
    return Joint(
        rows=tuple(rows),
        how=how,
        budget=budget,
        confidence=confidence,
        claim=rows[0].claim,
        loss=loss,
        bound=bound,
        lower=lower,
        verdict=verdict,
        needed=needed,
    )


def verdict_on_each(rows: Sequence[Row]) -> tuple[Verdict, int | None]:
    """Whether each task keeps the budget, where one that is proven to lose more fails all, and what
    the open one needs that needs most.
    """
    verdicts = {row.verdict for row in rows}
    if "FAIL" in verdicts:
        return "FAIL", None
    if "UNDECIDED" not in verdicts:
        return "PASS", None
    undecided = [row for row in rows if row.verdict == "UNDECIDED"]
    needs = [row.needed for row in undecided if row.needed is not None]
    return "UNDECIDED", max(needs) if len(needs) == len(undecided) else None
