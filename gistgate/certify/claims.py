"""What is claimed of the loose endpoint against the strict one: its score, its agreement, or the
length of its answers or thoughts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

from gistgate.certificates.fixed_sequence import Verdicts
from gistgate.certificates.planning import Plan
from gistgate.certify.answers import Answered, Served
from gistgate.core.utils import UserError

LENGTHS = 250
"""Prompts that a claim on lengths plans for, which nothing predicts before the first answers."""


@dataclass(frozen=True)
class Claim:
    """The loose endpoint scores little less: a mean over prompts keeps a budget."""

    budget: float
    id: ClassVar[str] = "score"
    promise: ClassVar[str] = "scores at most {:.4g} points lower than"
    """What is said of the loose endpoint by budget, in hundredths."""
    words: ClassVar[tuple[str, str, str]] = ("loss", "lost", "gained")
    """The names of what is bounded, and of prompts that speak against and for the loose
    endpoint."""
    lost: ClassVar[float] = 0.0
    """The share of changed answers that counts as lost in a plan."""
    counts_prompts: ClassVar[bool] = True
    """Whether the share of changed answers plans for it, and the exact bound may decide it."""

    def difference(self, prompt: Answered) -> float:
        """What is bounded, of one prompt, in [-1, 1]: strict less loose score."""
        strict, loose = prompt.scores
        return strict - loose

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """What could be lost at most: the strict score."""
        return fmean(prompt.scores[0] for prompt in answered)

    def needed(self, plan: Plan, changed: float) -> int | None:
        """Prompts that certify the budget if this share of answers changes."""
        return plan.needed(changed, self.lost * changed)

    def said(self, value: float, answered: Sequence[Answered]) -> float:
        """A mean or a bound of differences as it is said."""
        return value

    def shown(self, verdicts: Verdicts, answered: Sequence[Answered]) -> Verdicts:
        """The verdicts with their bound as it is said."""
        return verdicts


class Tools(Claim):
    """The loose endpoint calls tools little worse."""

    id = "tools"
    promise = "calls tools at most {:.4g} points worse than"


class Agreement(Claim):
    """The loose endpoint answers otherwise on few prompts."""

    id = "agreement"
    promise = "answers at most {:.4g} % of the prompts otherwise than"
    words = ("changed", "changed", "mended")
    lost = 1.0

    def difference(self, prompt: Answered) -> float:
        """1 where the answers differ in their meaning, else 0."""
        [strict], [loose] = prompt.texts
        return float(strict != loose and not prompt.task.same_meaning(prompt.doc, loose, strict))

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """The share of strict answers with a text."""
        return fmean(bool(answer.text.strip()) for prompt in answered for answer in prompt.strict)


class Length(Claim):
    """The loose endpoint writes little more."""

    id = "length"
    promise = "writes at most {:.4g} % more than"
    words = ("growth", "longer", "shorter")
    counts_prompts = False

    def length(self, answer: Served) -> float | None:
        """What is compared, in tokens; None where the server does not say it."""
        return answer.tokens

    def mean_length(self, answers: Sequence[Served]) -> float | None:
        """The mean of lengths; None where one is not said."""
        lengths = [self.length(answer) for answer in answers]
        told = [length for length in lengths if length is not None]
        return fmean(told) if len(told) == len(lengths) else None

    def growth(self, prompt: Answered) -> float:
        """How much longer the loose answers to a prompt are on average, in tokens."""
        return (self.mean_length(prompt.loose) or 0) - (self.mean_length(prompt.strict) or 0)

    def difference(self, prompt: Answered) -> float:
        """What a loose answer is longer than the budget allows, as a share of the longest answer,
        moved and scaled so that the mean is the budget if it is just kept.
        """
        limit = prompt.task.max_new_tokens
        strict = self.mean_length(prompt.strict)
        loose = self.mean_length(prompt.loose)
        lengths = [self.length(answer) or 0 for answer in (*prompt.strict, *prompt.loose)]
        if strict is None or loose is None or max(lengths) > limit:
            raise UserError(
                f"The servers say {prompt.strict[0].tokens} and {prompt.loose[0].tokens} tokens, of"
                f" at most {limit}. Claim something else."
            )
        surplus = loose - (1 + self.budget) * strict
        return self.budget + (1 - self.budget) * surplus / limit

    def to_lose(self, answered: Sequence[Answered]) -> float:
        """The growth up to the longest answers; nothing where nobody writes."""
        return self.growth_unit(answered) - 1

    def needed(self, plan: Plan, changed: float) -> int:
        """A usual number of prompts."""
        return LENGTHS

    def said(self, value: float, answered: Sequence[Answered]) -> float:
        """The growth of the mean length."""
        return self.budget + (value - self.budget) * self.growth_unit(answered) / (1 - self.budget)

    def shown(self, verdicts: Verdicts, answered: Sequence[Answered]) -> Verdicts:
        """The verdicts with the growth in place of what was tested; what was decided stays."""
        tested = verdicts.tested[0]
        bound = verdicts.bound(self.budget)
        growths = [self.growth(prompt) for prompt in answered]
        bound = replace(
            bound,
            mean=self.said(bound.mean, answered),
            value=self.said(bound.value, answered),
            losses=sum(growth > 0 for growth in growths),
            gains=sum(growth < 0 for growth in growths),
        )
        return replace(verdicts, tested=(replace(tested, bounds={self.budget: bound}),))

    def growth_unit(self, answered: Sequence[Answered]) -> float:
        """The longest length over the mean strict one; 1 where nothing was written."""
        strict = [answer for prompt in answered for answer in prompt.strict]
        limit = answered[0].task.max_new_tokens
        return limit / (self.mean_length(strict) or limit)


class Thoughts(Length):
    """The loose endpoint thinks little longer."""

    id = "thoughts"
    promise = "thinks at most {:.4g} % longer than"

    def length(self, answer: Served) -> float | None:
        """The tokens of its thought."""
        return answer.tokens_of_thought


CLAIMS: dict[str, type[Claim]] = {
    claim.id: claim for claim in (Claim, Tools, Agreement, Length, Thoughts)
}
