"""What is counted of an answer, and where it ends, token by token."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gistgate.core.block import Reason
from gistgate.core.request import Row, Statistics, Stop, eos_ids, total
from gistgate.core.session import commit
from tests.tiny import byte_tokenizer

counts = st.integers(0, 1000)
statistics = st.builds(
    Statistics,
    *[counts] * 6,
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


TOKENIZER = byte_tokenizer(bos=False)
EOS = TOKENIZER.eos_token_id


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def end_of(tokens: list[int], limit: int, strings: list[str]) -> tuple[int, str | None]:
    """The slow definition: after every single token look at everything."""
    for num in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:num])
        if tokens[num - 1] == EOS:
            return num, "eos"
        if any(string in text for string in strings):
            return num, "stop"
        if num == limit:
            return num, "length"
    return len(tokens), None


texts = st.lists(st.one_of(st.sampled_from(ids_of("abc\n")), st.just(EOS)), max_size=12)
strings = st.lists(st.text("abc\n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=400, deadline=None)
@given(
    tokens=texts, cuts=st.lists(st.integers(1, 5), min_size=12, max_size=12), limit=st.integers(1, 14), stops=strings
)
def test_however_the_text_arrives_it_ends_at_the_same_token(
    tokens: list[int], cuts: list[int], limit: int, stops: list[str]
):
    stop = Stop(limit, {EOS}, stops, TOKENIZER)
    answer: list[int] = []
    finish = None
    while finish is None and len(answer) < len(tokens):
        new = tokens[len(answer) :][: cuts[len(answer)]]
        kept, finish = stop.cut(answer, new)
        assert kept <= len(new) and (finish is not None or kept == len(new))
        answer += new[:kept]
    assert (len(answer), finish) == end_of(tokens, limit, stops)


@settings(max_examples=200, deadline=None)
@given(text=st.text("a🙂é\n", max_size=6), stop=st.text("a🙂é\n", min_size=1, max_size=2), step=st.integers(1, 5))
@example(text="a🙂", stop="🙂", step=1)
def test_a_stop_of_several_bytes_per_character_is_found(text: str, stop: str, step: int):
    tokens, answer, finish = ids_of(text), [], None
    while finish is None and len(answer) < len(tokens):
        new = tokens[len(answer) :][:step]
        kept, finish = Stop(99, (), [stop], TOKENIZER).cut(answer, new)
        answer += new[:kept]
    assert (len(answer), finish) == end_of(tokens, 99, [stop])


@pytest.mark.parametrize(
    "new, room, expected",
    [
        ("ab", 9, (2, None)),
        ("ab", 2, (2, "length")),
        ("abc", 2, (2, "length")),
        ("a.b", 9, (2, "stop")),
        ("a.b", 2, (2, "stop")),
        ("a.b", 1, (1, "length")),
        ("", 9, (0, None)),
    ],
)
def test_the_first_end_counts(new: str, room: int, expected: tuple[int, str | None]):
    assert Stop(room + 3, (EOS,), ["."], TOKENIZER).cut(ids_of("xyz"), ids_of(new)) == expected


def test_eos_stays_and_wins_at_the_limit():
    stop = Stop(3, (EOS,))
    assert stop.cut([], [7, EOS, 8]) == (2, "eos")
    assert stop.cut([], [7, 8, EOS]) == (3, "eos")
    assert stop.cut([], [7, 8, 9, EOS]) == (3, "length")


def test_a_stop_reaches_over_the_border_of_two_blocks():
    stop = Stop(99, (), ["Question:"], TOKENIZER)
    assert stop.cut(ids_of("so 4. Quest"), ids_of("ion: how")) == (4, "stop")
    assert stop.cut(ids_of("so 4. Quest"), ids_of("ion, how")) == (8, None)


@pytest.mark.parametrize(
    ("listed", "own", "ids"),
    [([7, 3], 5, [3, 5, 7]), (4, 4, [4]), (0, None, [0]), (None, 2, [2]), (None, None, []), ("no settings", 6, [6])],
)
def test_an_answer_ends_at_the_ends_of_tokenizer_and_model(listed: Any, own: int | None, ids: list[int]):
    config = None if listed == "no settings" else SimpleNamespace(eos_token_id=listed)
    assert eos_ids(SimpleNamespace(generation_config=config), SimpleNamespace(eos_token_id=own)) == ids


def test_a_stop_string_may_be_a_special_token():
    assert Stop(9, (), [TOKENIZER.eos_token], TOKENIZER).cut([], [*ids_of("a"), EOS, 7]) == (2, "stop")
