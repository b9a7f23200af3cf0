"""What is claimed of the loose endpoint against the strict one: its score, its agreement or its
length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

from gistgate.certificates.fixed_sequence import Verdicts
from gistgate.certificates.planning import Plan
from gistgate.certify.answers import Answered, Means
from gistgate.core.utils import UserError

LENGTHS = 250
"""Prompts that a claim on lengths plans for, which nothing predicts before the first answers."""


@dataclass(frozen=True)
class Claim(ABC):
    """A quantity whose mean over prompts shall keep a budget, and the words for it."""

    budget: float

    id: ClassVar[str]
    promise: ClassVar[str]
    """What is said of the loose endpoint by budget, in hundredths."""
    quantity: ClassVar[str]
    """The name of what is bounded."""
    worse: ClassVar[str]
    """The name of prompts that speak against the loose endpoint."""
    better: ClassVar[str]
    """The name of prompts that speak for it."""
    lost: ClassVar[float] = 0.0
    """The share of changed answers that counts as lost in a plan."""
    counts_prompts: ClassVar[bool] = True
    """Whether the share of changed answers plans for it, and the exact bound may decide it."""

    @abstractmethod
    def difference(self, prompt: Answered) -> float:
        """The quantity of one prompt, in [-1, 1]."""

    @abstractmethod
    def to_lose(self, strict: Means, n: int, limit: int) -> float:
        """How much could be lost at most, if these are the means over `n` strict answers, each of
        at most `limit` tokens.
        """

    def needed(self, plan: Plan, changed: float) -> int | None:
        """Prompts that certify the budget if this share of answers changes."""
        return plan.needed(changed, self.lost * changed)

    def said(self, value: float, limit: int, strict_tokens: float | None) -> float:
        """A mean or a bound of `difference` as it is said; `strict_tokens` is the mean length of
        strict answers.
        """
        return value

    def shown(self, verdicts: Verdicts, answered: Sequence[Answered], strict: Means) -> Verdicts:
        """The verdicts with their bound as it is said."""
        return verdicts


class Score(Claim):
    """The loose endpoint scores little less."""

    id = "score"
    promise = "scores at most {:.4g} points lower than"
    quantity = "loss"
    worse = "lost"
    better = "gained"

    def difference(self, prompt: Answered) -> float:
        """Strict less loose score."""
        strict, loose = prompt.scores
        return strict - loose

    def to_lose(self, strict: Means, n: int, limit: int) -> float:
        """The strict score."""
        return strict.score or 0.0


class Agreement(Claim):
    """The loose endpoint answers otherwise on few prompts."""

    id = "agreement"
    promise = "answers at most {:.4g} % of the prompts otherwise than"
    quantity = "changed"
    worse = "changed"
    better = "mended"
    lost = 1.0

    def difference(self, prompt: Answered) -> float:
        """1 where the answers differ in their meaning, else 0."""
        [strict], [loose] = prompt.texts
        return float(strict != loose and not prompt.task.same_meaning(prompt.doc, loose, strict))

    def to_lose(self, strict: Means, n: int, limit: int) -> float:
        """The share of strict answers with a text."""
        return 1 - strict.empty / n


class Length(Claim):
    """The loose endpoint writes little more."""

    id = "length"
    promise = "writes at most {:.4g} % more than"
    quantity = "growth"
    worse = "longer"
    better = "shorter"
    counts_prompts = False

    def difference(self, prompt: Answered) -> float:
        """What a loose answer is longer than the budget allows, as a share of the longest answer,
        moved and scaled so that the mean is the budget if it is just kept.
        """
        limit = prompt.task.max_new_tokens
        strict, loose = ([answer.tokens for answer in side] for side in prompt.sides)
        lengths = [tokens for tokens in (*strict, *loose) if tokens is not None]
        if len(lengths) < len(strict) + len(loose) or max(lengths) > limit:
            raise UserError(
                f"The servers say {strict[0]} and {loose[0]} tokens, of at most {limit}. Claim"
                " something else."
            )
        allowed = (1 + self.budget) * fmean(lengths[: len(strict)])
        surplus = fmean(lengths[len(strict) :]) - allowed
        return self.budget + (1 - self.budget) * surplus / limit

    def to_lose(self, strict: Means, n: int, limit: int) -> float:
        """The growth up to the longest answers."""
        return limit / (strict.tokens or limit) - 1

    def needed(self, plan: Plan, changed: float) -> int:
        """A usual number of prompts."""
        return LENGTHS

    def said(self, value: float, limit: int, strict_tokens: float | None) -> float:
        """The growth of the mean length."""
        unit = limit / (strict_tokens or 1)
        return self.budget + (value - self.budget) * unit / (1 - self.budget)

    def shown(self, verdicts: Verdicts, answered: Sequence[Answered], strict: Means) -> Verdicts:
        """The verdicts with the growth in place of what was tested; what was decided stays."""
        limit = answered[0].task.max_new_tokens
        tested = verdicts.tested[0]
        bound = tested.bounds[0]
        longer = 0
        shorter = 0
        for prompt in answered:
            strict_tokens, loose_tokens = (
                sum(answer.tokens or 0 for answer in side) for side in prompt.sides
            )
            longer += loose_tokens > strict_tokens
            shorter += loose_tokens < strict_tokens
        bound = replace(
            bound,
            mean=self.said(bound.mean, limit, strict.tokens),
            value=self.said(bound.value, limit, strict.tokens),
            losses=longer,
            gains=shorter,
        )
        return replace(verdicts, tested=(replace(tested, bounds=(bound,)),))


CLAIMS: dict[str, type[Claim]] = {kind.id: kind for kind in (Score, Agreement, Length)}
