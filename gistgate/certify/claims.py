"""What is claimed of the loose endpoint against the strict one: its score, its agreement, or the
length of its answers or thoughts. Axis letters: N prompts; the two of `pairs_N2` are baseline and
candidate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import ClassVar, Literal

import numpy as np

from gistgate.certificates.bounds import (
    BETTING,
    RESOLUTION,
    Array,
    betting_bound,
    halved,
    longer_bound,
    refutes,
    shorter_bound,
)
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import Plan, Stop
from gistgate.certify.answers import Answered, Served
from gistgate.certify.judge import preference
from gistgate.core.utils import UserError

Verdict = Literal["PASS", "FAIL", "UNDECIDED"]
LENGTHS = 250
"""Prompts that a claim on lengths plans for, which nothing predicts before the first answers."""


@dataclass(frozen=True)
class Figures:
    """What one test of a claim says."""

    loss: float
    """The mean that is bounded."""
    bound: float | None
    """Upper bound on it; None where so few prompts bound nothing."""
    bound_kind: str
    lower: float
    """Lower bound on it, by betting."""
    tested_at: float
    """Confidence of the upper bound, which is higher than that of the verdict where two tests
    share the error."""
    verdict: Verdict = "UNDECIDED"


@dataclass(frozen=True)
class Claim:
    """The candidate scores little less than the baseline: a mean over prompts keeps a budget."""

    budget: float
    id: ClassVar[str] = "score"
    promise: ClassVar[str] = "scores at most {:.4g} points lower than"
    """What is said of the candidate by budget, in hundredths."""
    words: ClassVar[tuple[str, str, str]] = ("loss", "lost", "gained")
    """The names of what is bounded, and of prompts that speak against and for the candidate."""
    unit: ClassVar[str] = "points"
    """Of a budget, in hundredths."""
    lost: ClassVar[float] = 0.0
    """The share of changed answers that counts as lost in a plan."""
    is_scored: ClassVar[bool] = True
    """Whether it is about what a task scores."""
    counts_prompts: ClassVar[bool] = True
    """Whether the share of changed answers plans for it, and the exact bound may decide it."""

    @property
    def aim(self) -> float:
        """The mean of the differences if the budget is just kept."""
        return self.budget

    def measured(self, prompt: Answered) -> tuple[float, float]:
        """What is compared of baseline and candidate, each in [0, 1]: the scores."""
        strict, loose = prompt.scores
        return strict, loose

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """What could be lost at most: the strict score."""
        return fmean(prompt.scores[0] for prompt in answered)

    def needed(self, plan: Plan, changed: float) -> int | None:
        """Prompts that certify the budget if this share of answers changes."""
        return plan.needed(changed, self.lost * changed)

    def harm(self, pairs_N2: Array) -> Array:
        """Above 0 where the candidate is worse, below 0 where it is better [N]."""
        return np.asarray(pairs_N2[:, 0] - pairs_N2[:, 1])

    def differences(self, pairs_N2: Array) -> Array:
        """What is tested, in [-1, 1] [N]: baseline less candidate."""
        return self.harm(pairs_N2)

    def loss(self, pairs_N2: Array) -> float:
        """The mean that is bounded."""
        return float(self.harm(pairs_N2).mean())

    def upper(self, pairs_N2: Array, confidence: float) -> float | None:
        """Upper bound on it by betting, which holds at any time."""
        d = self.differences(pairs_N2)
        return max(float(d.mean()), betting_bound(d, 1 - confidence))

    def lower(self, pairs_N2: Array, confidence: float) -> float:
        """Lower bound on it by betting."""
        return lower_bound(self.differences(pairs_N2), confidence)

    def test(
        self, pairs_N2: Array, confidence: float, stop: Stop = "planned", ternary: bool = True
    ) -> Figures:
        """Test the prompts in their order, as `fixed_sequence` does with one setting.

        A wrong FAIL has an error of its own: the bets from below, which also end a test early.
        """
        d = self.differences(pairs_N2)
        verdicts = fixed_sequence([[Decoded(d)]], [self.budget], confidence, stop, ternary)
        bound = verdicts.bound(self.budget)
        lower = self.lower(pairs_N2, confidence)
        is_lost = verdicts.tested[0].answers[self.budget] == "beyond" or lower > self.budget
        figures = Figures(bound.mean, bound.value, bound.kind, lower, bound.confidence)
        return decided(figures, self.budget, verdicts.passed(self.budget) is not None, is_lost)


class Judged(Claim):
    """A judge prefers the candidate's answers little less often."""

    id = "judge"
    promise = "is worse to a judge, by losses less wins, by at most {:.4g} points than"
    is_scored = False

    def measured(self, prompt: Answered) -> tuple[float, float]:
        """1 and 0 where the judge prefers the baseline, 0 and 1 where it prefers the candidate, and
        halves where it prefers none.
        """
        mean = fmean(preference(answer.judge) or 0.0 for answer in prompt.loose)
        return (1 + mean) / 2, (1 - mean) / 2

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """The share of strict answers with a text."""
        return share_of_texts(answered)


class Tools(Claim):
    """The loose endpoint calls tools little worse."""

    id = "tools"
    promise = "calls tools at most {:.4g} points worse than"


class Agreement(Claim):
    """The candidate answers otherwise on few prompts."""

    id = "agreement"
    promise = "answers at most {:.4g} % of the prompts otherwise than"
    words = ("changed", "changed", "mended")
    unit = "%"
    lost = 1.0
    is_scored = False

    def measured(self, prompt: Answered) -> tuple[float, float]:
        """1, and 0 where an answer differs in its meaning, else 1."""
        [strict], [loose] = prompt.texts
        return 1.0, float(len(strict) == len(loose) and all(map(prompt.agrees, loose, strict)))

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """The share of strict answers with a text."""
        return share_of_texts(answered)


class Length(Claim):
    """The candidate writes little more: its mean length grows by a share of the baseline's."""

    id = "length"
    promise = "writes at most {:.4g} % more than"
    words = ("growth", "longer", "shorter")
    unit = "%"
    is_scored = False
    counts_prompts = False

    def length(self, answer: Served) -> float | None:
        """What is compared, in tokens; None where the server does not say it."""
        return answer.tokens

    def mean_length(self, answers: Sequence[Served]) -> float | None:
        """The mean of lengths; None where one is not said."""
        lengths = [self.length(answer) for answer in answers]
        told = [length for length in lengths if length is not None]
        return fmean(told) if len(told) == len(lengths) else None

    @property
    def aim(self) -> float:
        """No surplus over what the budget allows."""
        return 0.0

    def measured(self, prompt: Answered) -> tuple[float, float]:
        """Both mean lengths, as shares of the longest answer."""
        limit = prompt.task.max_new_tokens
        strict = self.mean_length(prompt.answers[0])
        loose = self.mean_length(prompt.answers[1])
        lengths = [self.length(answer) or 0 for answer in chain(*prompt.answers)]
        if strict is None or loose is None or max(lengths) > limit:
            raise UserError(
                f"The servers say {prompt.strict[0].tokens} and {prompt.loose[0].tokens} tokens, of"
                f" at most {limit}. Claim something else."
            )
        return strict / limit, loose / limit

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """The growth up to the longest answers; nothing where nobody writes."""
        lengths = [self.measured(prompt)[0] for prompt in answered]
        return 1 / (fmean(lengths) or 1.0) - 1

    def needed(self, plan: Plan, changed: float) -> int:
        """A usual number of prompts."""
        return LENGTHS

    def harm(self, pairs_N2: Array) -> Array:
        """Above 0 where the candidate wrote more [N]."""
        return np.asarray(pairs_N2[:, 1] - pairs_N2[:, 0])

    def differences(self, pairs_N2: Array) -> Array:
        """What the candidate wrote beyond the budget, in the scale of `longer_bound`, so that test
        and bounds are the same bets [N].
        """
        allowed = 1 + self.budget
        return np.asarray((pairs_N2[:, 1] - allowed * pairs_N2[:, 0]) / allowed)

    def loss(self, pairs_N2: Array) -> float:
        """The growth of the mean length."""
        baseline, candidate = pairs_N2.sum(0)
        return float(candidate / baseline - 1)

    def upper(self, pairs_N2: Array, confidence: float) -> float | None:
        """Upper bound on the growth, which assumes nothing about the baseline's mean length."""
        return longer_bound(pairs_N2[:, 0], pairs_N2[:, 1], 1.0, confidence)

    def lower(self, pairs_N2: Array, confidence: float) -> float:
        """Lower bound on the growth."""
        return shorter_bound(pairs_N2[:, 0], pairs_N2[:, 1], 1.0, confidence)

    def test(
        self, pairs_N2: Array, confidence: float, stop: Stop = "planned", ternary: bool = True
    ) -> Figures:
        """Bet from above and below, each with the whole error, as no other bound shares it."""
        d = self.differences(pairs_N2)
        figures = Figures(
            loss=self.loss(pairs_N2),
            bound=self.upper(pairs_N2, confidence),
            bound_kind=BETTING,
            lower=self.lower(pairs_N2, confidence),
            tested_at=confidence,
        )
        is_kept = refutes(d, self.aim, confidence)
        return decided(figures, self.budget, is_kept, refutes(-d, self.aim, confidence))


def share_of_texts(answered: Sequence[Answered]) -> float:
    """The share of strict answers with a text."""
    return fmean(bool(text.strip()) for prompt in answered for text in prompt.transcripts(0))


def decided(figures: Figures, budget: float, is_kept: bool, is_lost: bool) -> Figures:
    """The figures with their verdict; a budget that is shown to be kept or lost is a bound itself,
    whatever the resolution of the computed one.
    """
    if is_kept:
        bound = budget if figures.bound is None else min(figures.bound, budget)
        return replace(figures, bound=bound, verdict="PASS")
    if is_lost:
        return replace(figures, lower=max(figures.lower, budget), verdict="FAIL")
    return figures


def lower_bound(differences: Array, confidence: float) -> float:
    """The largest mean loss that bets refute from below: the betting bound of the negated
    differences, which the exact bound has none of below 0.
    """
    mean = partial(refutes, -differences, confidence=confidence)
    negated = halved(-1.0, 1.0, RESOLUTION / 4, mean)
    return max(-1.0, -math.ceil(negated / RESOLUTION) * RESOLUTION)


class Thoughts(Length):
    """The loose endpoint thinks little longer."""

    id = "thoughts"
    promise = "thinks at most {:.4g} % longer than"

    def length(self, answer: Served) -> float | None:
        """The tokens of its thought."""
        return answer.tokens_of_thought


CLAIMS: dict[str, type[Claim]] = {
    claim.id: claim for claim in (Claim, Judged, Tools, Agreement, Length, Thoughts)
}
