"""Where two answers differ, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher


@dataclass(frozen=True)
class Difference:
    """Two spans that stand at the same place of two answers and are not equal; one of them may be empty."""

    number: int
    """Place among all differences, from 1."""
    left: slice
    """Tokens of the first answer."""
    right: slice
    """Tokens of the second answer."""


def differences(left: Sequence[str], right: Sequence[str]) -> list[Difference]:
    """The differing spans of two answers, given as the texts of their tokens, in reading order."""
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    changes = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
    return [
        Difference(number, slice(left_start, left_end), slice(right_start, right_end))
        for number, (_, left_start, left_end, right_start, right_end) in enumerate(changes, start=1)
    ]


def segments(num: int, spans: Sequence[tuple[int, slice]]) -> Iterator[tuple[int | None, slice]]:
    """Split `num` tokens into the given (number, span) pairs and the spans between them, whose number is None."""
    done = 0
    for number, span in spans:
        if done < span.start:
            yield None, slice(done, span.start)
        yield number, span
        done = span.stop
    if done < num:
        yield None, slice(done, num)
