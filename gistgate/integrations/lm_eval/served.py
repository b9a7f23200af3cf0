"""What passed through the decoder while the harness evaluated, by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gistgate.request.rows import Generation
from gistgate.request.statistics import Statistics, total


@dataclass
class Served:
    """Answers by the token ids of their prompt; a prompt asked several times has several."""

    answers: dict[tuple[int, ...], list[Generation]] = field(default_factory=dict)

    def add(self, prompt: Sequence[int], answer: Generation) -> None:
        """Keep one answer."""
        self.answers.setdefault(tuple(prompt), []).append(answer)

    def times(self, prompt: Sequence[int]) -> int:
        """How often this prompt was answered already."""
        return len(self.answers.get(tuple(prompt), []))

    def merge(self, other: Served) -> None:
        """Take over what another process answered."""
        for prompt, answers in other.answers.items():
            self.answers.setdefault(prompt, []).extend(answers)

    @property
    def statistics(self) -> Statistics:
        """The sum over all answers."""
        return total([answer.statistics for answers in self.answers.values() for answer in answers])
