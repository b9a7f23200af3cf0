"""Counters add up, and survive the way through JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gistgate.core.block import Reason
from gistgate.core.request import Row, Statistics, Stop, total
from gistgate.core.session import commit

counts = st.integers(0, 1000)
statistics = st.builds(
    Statistics,
    counts,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.dictionaries(st.integers(0, 16), counts, max_size=4),
    st.dictionaries(st.sampled_from(["draft", "verify", "accept", "total"]), st.integers(0, 9).map(float)),
)


@given(a=statistics, b=statistics)
def test_sums_and_the_way_through_json(a: Statistics, b: Statistics):
    both = a + b
    assert both.tokens == a.tokens + b.tokens and both.forwards == a.forwards + b.forwards
    assert sum(both.histogram.values()) == sum(a.histogram.values()) + sum(b.histogram.values())
    assert sum(both.seconds.values()) == sum(a.seconds.values()) + sum(b.seconds.values())
    assert Statistics.from_dict(json.loads(json.dumps(both.as_dict()))) == both
    untimed = both.as_dict(timed=False)
    assert "seconds" not in untimed and Statistics.from_dict(untimed).tokens == both.tokens
    assert a + Statistics() == Statistics() + a == total([a]) == a


def test_rates():
    assert (Statistics().mean_accepted_length, Statistics().loose_per_100) == (0.0, 0.0)
    some = Statistics(forwards=4, strict=6, loose=3, carried=2, own=4)
    assert (some.tokens, some.mean_accepted_length, some.loose_per_100) == (15, 3.75, 20.0)
    assert total([some, some, Statistics()]).mean_accepted_length == 3.75


def test_parts_of_the_time_add_up():
    some = Statistics()
    some.spend("draft", 1.0)
    some.spend("draft", 0.5)
    assert some.seconds == {"draft": 1.5}


WHY = [Reason.STRICT, Reason.LOOSE, Reason.CARRIED]


@pytest.mark.parametrize(
    "eos, kept, counted, length, finish",
    [
        (99, [10, 11, 12, 13], (1, 1, 1, 1), 3, None),
        (13, [10, 11, 12, 13], (1, 1, 1, 1), 3, "eos"),  # the own token ends it
        (12, [10, 11, 12], (1, 1, 1, 0), 3, "eos"),
        (11, [10, 11], (1, 1, 0, 0), 2, "eos"),
        (10, [10], (1, 0, 0, 0), 1, "eos"),
    ],
)
def test_a_block_is_cut_before_it_is_counted(
    eos: int, kept: list[int], counted: tuple[int, ...], length: int, finish: str | None
):
    row = Row(0, [1, 2], 2)
    commit(row, [10, 11, 12], WHY, 13, Stop(9, (eos,)), draft_forwards=3)
    got = row.statistics
    assert (row.answer, row.finish) == (kept, finish) and row.reasons == [*WHY, Reason.OWN][: len(kept)]
    assert (got.strict, got.loose, got.carried, got.own) == counted
    assert (got.forwards, got.draft_forwards, got.histogram) == (1, 3, {length: 1})
