"""A third server that says which of two answers is better, and does not know whose they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gistgate.certify.answers import Pair
from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError
from gistgate.tasks.task import Messages

if TYPE_CHECKING:
    from gistgate.certify.endpoint import Endpoint

PROMPT = """Compare two answers to the same request. Judge whether they are right, helpful and as \
asked for. Neither their order nor their length counts.

[Request]
{question}

[Answer A]
{a}

[Answer B]
{b}

Give your reasons in a few sentences, and end with [[A]] if answer A is better, [[B]] if answer B \
is better, or [[C]] if neither is."""
"""What the judge is asked, unless the user says otherwise."""
PLACES = ("{question}", "{a}", "{b}")
MARK = re.compile(r"\[\[\s*(A|B|C|tie)\s*\]\]", re.I)
MOST_TOKENS = 2048
"""Of what the judge says."""
MOST_UNREAD = 0.1
"""Share of the judged prompts without a verdict above which nothing is claimed."""


@dataclass(frozen=True)
class Judge:
    """The judge and what it is asked."""

    endpoint: Endpoint
    template: str = PROMPT

    def __post_init__(self) -> None:
        missing = [place for place in PLACES if place not in self.template]
        if missing:
            raise UserError(
                f"The prompt of the judge lacks {' and '.join(missing)}. Write {', '.join(PLACES)}"
                " where request and answers stand, and ask for [[A]], [[B]] or [[C]]."
            )

    def described(self) -> dict[str, Any]:
        """What a card says of it."""
        return {**self.endpoint.described(), "prompt": fingerprint(self.template)}

    async def judged(self, prompt: str | Messages, pair: Pair) -> Pair:
        """The pair, of which the candidate's answer keeps what the judge said to both orders;
        nothing where the answers are equal.
        """
        baseline, candidate = pair
        texts = (baseline.transcript, candidate.transcript)
        if texts[0] == texts[1]:
            return pair
        question = prompt if isinstance(prompt, str) else as_text(prompt)
        orders = (texts, texts[::-1])
        words = await asyncio.gather(*(self.ask(question, *order) for order in orders))
        return baseline, replace(candidate, judge=tuple(words))

    async def ask(self, question: str, a: str, b: str) -> str:
        """What the judge says of two answers."""
        text = self.template
        # At once, so that no answer is searched for the places of others.
        texts = dict(zip(PLACES, (question, a, b), strict=True))
        text = re.sub("|".join(map(re.escape, PLACES)), lambda place: texts[place[0]], text)
        served = await self.endpoint.answer([{"role": "user", "content": text}], (), MOST_TOKENS)
        return served.text


def as_text(messages: Messages) -> str:
    """The messages of a chat as one text."""
    return "\n\n".join(f"{message['role']}: {message.get('content')}" for message in messages)


def preference(words: Sequence[str]) -> float | None:
    """1 where the judge prefers the baseline, -1 where it prefers the candidate, and 0 where it
    prefers none or contradicts itself once the order is another; None where it says no verdict.
    """
    if not words:
        return 0.0
    marks = [MARK.findall(text) for text in words]
    if not all(marks):
        return None
    values = {"A": 1.0, "B": -1.0}
    first, second = (values.get(verdicts[-1].upper(), 0.0) for verdicts in marks)
    return first if first == -second else 0.0
