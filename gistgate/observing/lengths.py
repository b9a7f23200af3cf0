"""How long answers get, and which limit of tokens that asks for: what suits one pair cuts the answers of another.

An answer that is cut says no more than that it is longer, so that a limit can only be proposed where most answers end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gistgate.request.rows import Generation

ROOM = 1.5
"""Proposed limit, as a multiple of the longest answer: the longest of n is exceeded by one in n + 1 further answers."""
STEP = 10
"""A proposed limit is a multiple of so many tokens."""
NEXT = 4
"""The limit to measure with where too many answers are cut, as a multiple of the last one."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of some answers."""

    answers: int
    """How many there are."""
    cut: int
    """Those that the limit ended."""
    longest: int
    """Length of the longest of the others, in tokens; 0 where there is none."""
    limit: int
    """Longest answer that was allowed, in tokens."""

    @property
    def enough(self) -> int:
        """A limit that leaves room behind the longest answer that ended before it, in tokens."""
        return math.ceil(ROOM * self.longest / STEP) * STEP

    @property
    def is_told(self) -> bool:
        """Whether these answers tell which limit they need: most of them end, and far enough below the limit."""
        return self.longest > 0 and (not self.cut or (2 * self.cut < self.answers and self.enough <= self.limit))


def lengths_of(answers: Sequence[Generation], limit: int) -> Lengths:
    """The lengths of answers that were decoded with a limit of so many tokens."""
    ended = [len(answer.ids) for answer in answers if answer.finish != "length"]
    return Lengths(len(answers), len(answers) - len(ended), max(ended, default=0), limit)


def limit_advice(found: Lengths) -> str:
    """Which limit these answers ask for, or how to find it, in a sentence or two."""
    reached = f"{found.cut or 'None'} of {found.answers} answers reached the limit of {found.limit} tokens"
    if not found.is_told:
        return (
            f"{reached}, so that the length of whole answers is not known. Before you set a limit for a task, ask "
            f"again with --max-new-tokens {NEXT * found.limit}, or with what the context leaves behind the prompt, and "
            "with --stop where a text ends the task's answers."
        )
    longest = "and may never end; the longest of the others has" if found.cut else "and the longest has"
    return (
        f"{reached} {longest} {found.longest}. A limit of {found.enough} tokens leaves room for further answers "
        "of this kind."
    )
