"""The answers of two endpoints to the same prompts."""

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


class Answered:
    """One document with the answers of both endpoints, which are cut and scored."""

    def __init__(self, task: Task, doc: Document, pairs: Sequence[Pair]) -> None:
        self.task = task
        self.doc = doc
        self.strict = [strict for strict, _ in pairs]
        self.loose = [loose for _, loose in pairs]
        self.texts: list[list[str]] = []
        """The strict and the loose texts as they are scored."""
        self.scores: list[float] = []
        """The mean score of each side; empty where the task does not judge."""
        for side in (self.strict, self.loose):
            self.texts.append([task.cut(answer.text) for answer in side])
            if task.judges:
                self.scores.append(fmean(task.score(doc, text) for text in self.texts[-1]))

    @property
    def is_differing(self) -> bool:
        """Whether the texts of a pair differ, scored alike or not."""
        return [answer.text for answer in self.strict] != [answer.text for answer in self.loose]

    @property
    def growth(self) -> int:
        """Tokens of the loose answers less those of the strict ones."""
        loose = sum(answer.tokens or 0 for answer in self.loose)
        return loose - sum(answer.tokens or 0 for answer in self.strict)


def mean_length(answers: Sequence[Served]) -> float | None:
    """The mean length in tokens; None where the server does not say all lengths."""
    lengths = [answer.tokens for answer in answers if answer.tokens is not None]
    return fmean(lengths) if len(lengths) == len(answers) else None


def means_of(answers: Sequence[Served], scores: Sequence[float]) -> dict[str, float | None]:
    """What a card says of one endpoint: shares of answers cut at the longest length and before,
    mean length in tokens and mean score.
    """
    return {
        "capped": fmean(answer.capped for answer in answers),
        "limited": fmean(answer.limited for answer in answers) or None,
        "tokens": mean_length(answers),
        "score": fmean(scores) if scores else None,
    }
