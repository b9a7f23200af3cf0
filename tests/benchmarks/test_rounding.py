"""Answers of two decodings are compared id by id."""

from __future__ import annotations

from benchmarks.rounding import compared, differing


def test_equal_answers_and_common_beginnings_are_counted():
    assert compared([[1, 2, 3], [4]], [[1, 2, 3], [4]]) == {"equal": 2, "common_tokens": None}
    assert compared([[1, 2, 3], [4, 5], [6]], [[1, 9, 3], [4, 5, 6], [6]]) == {"equal": 1, "common_tokens": 1.5}
    assert differing([1.0, 0.0, 1.0], [1.0, 1.0, 0.0]) == 2
