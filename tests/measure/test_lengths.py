"""Which limit of tokens some answers ask for, and when they cannot tell."""

from __future__ import annotations

import re

import pytest

from gistgate.core.request import Generation, Statistics
from gistgate.measure.outlook import Lengths, lengths_of, limit_advice


def answer(tokens: int, finish: str = "eos") -> Generation:
    """An answer of so many tokens."""
    return Generation([7] * tokens, [], finish, Statistics())


def test_cut_answers_are_counted_apart_from_those_that_end_at_the_limit() -> None:
    answers = [answer(30), answer(64, "length"), answer(64), answer(50, "stop")]
    assert lengths_of(answers, 64) == Lengths(answers=4, cut=1, longest=64, limit=64)
    assert lengths_of([answer(64, "length")], 64) == Lengths(answers=1, cut=1, longest=0, limit=64)


@pytest.mark.parametrize("longest, enough", [(0, 0), (1, 10), (40, 60), (51, 80), (213, 320)])
def test_the_proposal_is_half_as_long_again(longest: int, enough: int) -> None:
    assert Lengths(20, 0, longest, 400).enough == enough


@pytest.mark.parametrize(
    "found, said",
    [
        (
            Lengths(20, 0, 51, 64),
            "None of 20 .* limit of 64 tokens and the longest has 51. A limit of 80 tokens",
        ),
        (
            Lengths(20, 2, 213, 400),
            "2 of 20 .* never end; the longest of the others has 213. A limit of 320 tokens",
        ),
    ],
)
def test_answers_that_end_propose_a_limit(found: Lengths, said: str) -> None:
    assert found.is_told and re.search(said, limit_advice(found))


@pytest.mark.parametrize(
    "found",
    [
        Lengths(20, 5, 158, 160),  # the others end right below the limit: many more tokens may be needed
        Lengths(20, 15, 20, 64),  # a base model that goes on behind its answer
        Lengths(20, 20, 0, 64),
    ],
)
def test_a_limit_that_cuts_whole_answers_has_to_be_raised_first(found: Lengths) -> None:
    assert not found.is_told
    assert f"--max-new-tokens {4 * found.limit}, or with what the context leaves" in limit_advice(found)
    assert "A limit of" not in limit_advice(found)
