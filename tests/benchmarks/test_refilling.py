"""Slots that stay empty and answers that rounding changes, counted by hand."""

import pytest

from benchmarks.refilling import differing, lengths_of, to_their_end
from gistgate.request.rows import Generation
from gistgate.request.statistics import Statistics


def answer(*ids: int) -> Generation:
    return Generation(list(ids), [], "length", Statistics())


def test_the_longest_answer_of_a_batch_holds_all_its_slots():
    assert to_their_end(2, [4, 1, 2, 2]) == pytest.approx(1 - 9 / 12)
    assert to_their_end(4, [3, 3, 3, 3]) == 0


def test_what_was_written_until_the_first_other_token_is_counted():
    alone = [answer(5, 6, 7), answer(1, 2), answer()]
    assert differing(alone, alone) == {"differ": 0, "of": 3, "written": 5}
    assert differing(alone, [answer(5, 9, 7), answer(1, 2), answer()]) == {"differ": 1, "of": 3, "written": 3}


def test_scripted_answers_are_short_with_a_long_tail():
    lengths = lengths_of(1000)
    assert min(lengths) == 4 and max(lengths) == 39 and sorted(lengths)[500] < 16
