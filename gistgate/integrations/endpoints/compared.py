"""Two servers that answer the same documents of a task, chunk by chunk, and what their answers look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.served import Lengths
from gistgate.integrations.endpoints.kept import KeptAnswers
from gistgate.integrations.endpoints.server import Asked, Endpoint, Served
from gistgate.integrations.lm_eval.prompting import Document
from gistgate.integrations.lm_eval.task import Task

CHUNK = 64
"""Prompts between two looks at the outcomes."""


@dataclass
class Compared:
    """Both servers on the calibration documents, chunk by chunk; every answer is kept for the lengths."""

    task: Task
    docs: Sequence[Document]
    strict: Endpoint
    loose: Endpoint
    kept: KeptAnswers
    concurrent: int

    def __post_init__(self) -> None:
        self.answers: tuple[list[Served], list[Served]] = ([], [])
        self.scores: tuple[list[float], list[float]] = ([], [])

    def chunks(self) -> Iterator[Decoded]:
        """d = strict - loose score of the next documents."""
        for start in range(0, len(self.docs), CHUNK):
            docs = self.docs[start : start + CHUNK]
            asked = [request(self.task, doc) for doc in docs]
            for endpoint, answers, scores in zip((self.strict, self.loose), self.answers, self.scores, strict=True):
                new = self.kept.answers(endpoint, asked, self.concurrent)
                answers += new
                scores += [self.task.score(doc, self.task.cut(one.text)) for doc, one in zip(docs, new, strict=True)]
            first, second = (np.array(scores[start:], dtype=float) for scores in self.scores)
            yield Decoded(first - second)

    @property
    def differing(self) -> int:
        """Prompts that the servers answered differently."""
        return sum(one.text != other.text for one, other in zip(*self.answers, strict=True))

    def lengths(self) -> tuple[Lengths, Lengths]:
        """Capped answers, length and score of the strict and the loose server."""
        first, second = (described(*pair) for pair in zip(self.answers, self.scores, strict=True))
        return first, second


def request(task: Task, doc: Document) -> Asked:
    """How a document is asked."""
    prompt = task.messages(doc) if task.prompting.chat_template else task.context(doc, None)
    return Asked(prompt, tuple(task.stops), task.max_new_tokens)


def described(answers: Sequence[Served], scores: Sequence[float]) -> Lengths:
    """Means over the answers of one server."""
    tokens = [one.tokens for one in answers if one.tokens is not None]
    mean = fmean(tokens) if len(tokens) == len(answers) else None
    return Lengths(fmean(one.capped for one in answers), mean, fmean(scores))
