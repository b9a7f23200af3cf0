"""Where two answers differ, and their split into segments."""

import pytest

from gistgate.demo.page import differences, segments


def test_equal_answers_have_no_difference():
    assert differences(["a", "b"], ["a", "b"]) == []


@pytest.mark.parametrize("left, right, expected", [
    (["a", "x", "c"], ["a", "y", "c"], [(1, 2, 1, 2)]),
    (["a", "c"], ["a", "b", "c"], [(1, 1, 1, 2)]),
    (["x", "b", "y"], ["b"], [(0, 1, 0, 0), (2, 3, 1, 1)]),
])  # fmt: skip
def test_a_difference_names_the_spans_of_both_answers(left, right, expected):
    found = [(one.left.start, one.left.stop, one.right.start, one.right.stop) for one in differences(left, right)]
    assert found == expected


def test_segments_cover_every_token_once_and_keep_empty_differences():
    spans = [(one.number, one.right) for one in differences(["x", "b", "y"], ["b"])]
    parts = list(segments(1, spans))
    assert [number for number, _ in parts] == [1, None, 2]
    assert [list(range(1))[span] for _, span in parts] == [[], [0], []]
