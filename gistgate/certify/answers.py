"""The answers of two endpoints to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gistgate.tasks.task import Document, Task


@dataclass(frozen=True)
class Served:
    """One complete answer."""

    text: str
    """The answer, without the text that ended it."""
    tokens: int | None
    """Its length in tokens; None where the server does not say it."""
    capped: bool
    """Whether it was cut at the longest length."""
    limited: bool = False
    """Whether the server cut it at a limit of its own before that."""


Pair = tuple[Served, Served]  # the strict and the loose answer to one prompt, of one seed


@dataclass(frozen=True)
class Answered:
    """One document with the answers of both endpoints, strict ones first."""

    task: Task
    doc: Document
    pairs: Sequence[Pair]
    """One for each sample."""
    texts: list[list[str]]
    """The texts of both sides as they are scored."""
    scores: list[float]
    """The mean score of each side; empty where the task does not judge."""

    @classmethod
    def of(cls, task: Task, doc: Document, pairs: Sequence[Pair]) -> Answered:
        """Cut and score the answers to a document."""
        texts = []
        scores = []
        for side in zip(*pairs, strict=True):
            texts.append([task.cut(answer.text) for answer in side])
            if task.judges:
                scores.append(fmean(task.score(doc, text) for text in texts[-1]))
        return cls(task, doc, pairs, texts, scores)

    @property
    def sides(self) -> tuple[list[Served], list[Served]]:
        """The strict answers and the loose ones."""
        return [strict for strict, _ in self.pairs], [loose for _, loose in self.pairs]

    @property
    def is_differing(self) -> bool:
        """Whether the texts of a pair differ, scored alike or not."""
        return any(strict.text != loose.text for strict, loose in self.pairs)


@dataclass(frozen=True)
class Means:
    """Means over the answers of one endpoint."""

    capped: float
    """Share of answers that were cut at the longest length."""
    limited: float | None
    """Share that the server cut before that; None if it is 0."""
    tokens: float | None
    """Mean length in tokens; None where the server does not say all lengths."""
    score: float | None
    """Mean score; None where nothing is scored."""
    empty: int
    """Answers without a text."""

    @classmethod
    def of(cls, answered: Sequence[Answered], side: int) -> Means:
        """The means of the strict side (0) or the loose one (1)."""
        answers = [answer for prompt in answered for answer in prompt.sides[side]]
        lengths = [answer.tokens for answer in answers if answer.tokens is not None]
        judges = answered[0].task.judges
        return cls(
            capped=fmean(answer.capped for answer in answers),
            limited=fmean(answer.limited for answer in answers) or None,
            tokens=fmean(lengths) if len(lengths) == len(answers) else None,
            score=fmean(prompt.scores[side] for prompt in answered) if judges else None,
            empty=sum(not answer.text.strip() for answer in answers),
        )

    @property
    def entries(self) -> dict[str, float | None]:
        """What a card says."""
        return {
            "capped": self.capped,
            "limited": self.limited,
            "tokens": self.tokens,
            "score": self.score,
        }
