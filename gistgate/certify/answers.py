"""The answers of two endpoints to the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gistgate.tasks.task import Document, Task

THOUGHTS = (
    "thought tokens",
    "thought characters",
    "answer characters",
    "unfinished thoughts",
    "unfinished answers",
)
"""What a card says of answers with thoughts."""


@dataclass(frozen=True)
class Served:
    """One complete answer."""

    text: str
    """The answer, without its thought and without the text that ended it."""
    tokens: int | None
    """The length of thought and answer in tokens; None where the server does not say it."""
    capped: bool
    """Whether it was cut at the longest length."""
    limited: bool = False
    """Whether the server cut it at a limit of its own before that."""
    thought: int = 0
    """The length of its thought in characters."""
    thought_tokens: int | None = None
    """The same in tokens; None where the server does not say it."""
    is_open: bool = False
    """Whether it ended within the thought, so that there is no answer."""
    judge: Sequence[str] = ()
    """What a judge said of it beside the baseline's answer, in both orders."""
    earlier: Sequence[Served] = ()
    """The answers to earlier turns of a conversation."""

    @classmethod
    def read(cls, entries: Mapping[str, Any]) -> Served:
        """An answer out of its entries in a file."""
        earlier = tuple(map(cls.read, entries.get("earlier", ())))
        return cls(**{**entries, "earlier": earlier})

    @property
    def tokens_of_thought(self) -> float | None:
        """The length of its thought in tokens: as the server says it, else by the characters."""
        if self.thought_tokens is not None or self.tokens is None:
            return self.thought_tokens
        characters = self.thought + len(self.text)
        return self.tokens * self.thought / max(1, characters)

    @property
    def turns(self) -> list[Served]:
        """The answers of a whole conversation."""
        return [*self.earlier, self]

    @property
    def transcript(self) -> str:
        """The texts of these answers as one."""
        return transcript_of(self.turns)


Pair = tuple[Served, Served]  # the strict and the loose answer to one prompt, of one seed


class Answered:
    """One document with the answers of both endpoints, which are cut and scored."""

    def __init__(self, task: Task, doc: Document, pairs: Sequence[Pair]) -> None:
        self.task = task
        self.doc = doc
        self.strict = [strict for strict, _ in pairs]
        self.loose = [loose for _, loose in pairs]
        self.answers: list[list[Served]] = []
        """The answers of each side that count: of all samples and, in a conversation, turns."""
        self.texts: list[list[list[str]]] = []
        """Their texts as they are scored, by side and sample."""
        self.scores: list[float] = []
        """The mean score of each side; empty where the task does not judge."""
        for side in (self.strict, self.loose):
            samples = [self.counted(answer) for answer in side]
            texts = [self.texts_of(turns) for turns in samples]
            self.answers.append([answer for turns in samples for answer in turns])
            self.texts.append(texts)
            if task.judges:
                self.scores.append(fmean(task.score_turns(doc, turns) for turns in texts))

    def texts_of(self, answers: Sequence[Served]) -> list[str]:
        """The texts of answers as they are scored."""
        return [self.task.cut(answer.text) for answer in answers]

    def counted(self, answer: Served) -> list[Served]:
        """The answers of a conversation that are scored."""
        return answer.turns if self.task.scores_turns else [answer]

    def transcripts(self, side: int) -> list[str]:
        """What people read of the strict (0) or the loose samples (1), a text for each."""
        samples = (self.strict, self.loose)[side]
        return [transcript_of(self.counted(answer)) for answer in samples]

    def agrees(self, text: str, reference: str) -> bool:
        """Whether two texts that are scored have one meaning."""
        return text == reference or bool(self.task.same_meaning(self.doc, text, reference))

    @property
    def is_differing(self) -> bool:
        """Whether the texts of a pair differ, scored alike or not."""
        return self.transcripts(0) != self.transcripts(1)


def transcript_of(answers: Sequence[Served]) -> str:
    """The texts of answers as one, each behind the number of its turn."""
    if len(answers) == 1:
        return answers[0].text
    return "\n\n".join(f"[{at}] {answer.text}" for at, answer in enumerate(answers, start=1))


def mean_length(answers: Sequence[Served]) -> float | None:
    """The mean length in tokens; None where the server does not say all lengths."""
    lengths = [answer.tokens for answer in answers if answer.tokens is not None]
    return fmean(lengths) if len(lengths) == len(answers) else None


def means_of(answers: Sequence[Served], scores: Sequence[float]) -> dict[str, float | None]:
    """What a card says of one endpoint: shares of answers cut at the longest length and before,
    mean length in tokens and mean score; and what `thoughts_of` says.
    """
    return {
        "capped": fmean(answer.capped for answer in answers),
        "limited": fmean(answer.limited for answer in answers) or None,
        "tokens": mean_length(answers),
        "score": fmean(scores) if scores else None,
        **thoughts_of(answers),
    }


def thoughts_of(answers: Sequence[Served]) -> dict[str, float | None]:
    """The mean length of thoughts, in tokens where the server says it and else in characters, that
    of the answers behind them, in characters, and the shares of thoughts and of answers without an
    end; None where nobody thinks.
    """
    if not any(answer.thought or answer.thought_tokens for answer in answers):
        return dict.fromkeys(THOUGHTS)
    tokens = [answer.thought_tokens for answer in answers if answer.thought_tokens is not None]
    is_told = len(tokens) == len(answers)
    return {
        "thought tokens": fmean(tokens) if is_told else None,
        "thought characters": None if is_told else fmean(answer.thought for answer in answers),
        "answer characters": fmean(len(answer.text) for answer in answers),
        "unfinished thoughts": fmean(answer.is_open for answer in answers),
        "unfinished answers": fmean(answer.capped and not answer.is_open for answer in answers),
    }
