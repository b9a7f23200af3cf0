"""Where a text is thinking: between two markers, read once, and ended by a marker inside the draft."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.rules.thresholds import Thinking, between_markers, find_markers
from tests.blocks import SURE, block

BEGIN, END = 1, 2


@pytest.mark.parametrize(
    "ids, before, after",
    [([], False, False), ([], True, True), ([5, BEGIN, 6], False, True), ([END, 7], True, False),
     ([BEGIN, 5, END, 6], False, False), ([END, BEGIN], True, True), ([BEGIN, BEGIN, END], False, False)],
)  # fmt: skip
def test_between_markers(ids: list[int], before: bool, after: bool):
    assert between_markers(ids, before, (BEGIN, END)) is after


def test_a_row_reads_only_what_is_new():
    row, thinking = Row(0, [5, BEGIN, 6], 3), Thinking((BEGIN, END))
    assert thinking.is_thinking(row)
    row.text = [END, END, END, 7]  # what was read before is not looked at again
    assert thinking.is_thinking(row)
    row.text += [END]
    assert not thinking.is_thinking(row)


@pytest.mark.parametrize(
    "text, draft, expected",
    [
        ([BEGIN, 5], [3, 0, 3], [True, True, True]),
        ([BEGIN, 5], [3, END, 3], [True, True, False]),  # the end marker itself still stands in the thinking
        ([BEGIN, 5, END], [3, 0, 3], [False, False, False]),
        ([5], [3, END, 3], [False, False, False]),
        ([BEGIN, 5], [END, END, 3], [True, False, False]),
    ],
)
def test_an_end_marker_in_the_draft_ends_it(text: list[int], draft: list[int], expected: list[bool]):
    judged = block(*[SURE[0]] * 4, draft=draft)
    fields = Thinking((BEGIN, END)).fields(judged, [Row(0, text, len(text))])
    assert fields["thinking"].tolist() == [expected]


def test_the_markers_are_never_accepted_loosely():
    assert Thinking((BEGIN, END)).protocol_ids == (BEGIN, END)
    assert "think markers" in Thinking((BEGIN, END)).needs_eager


def test_markers_are_single_tokens_of_the_tokenizer():
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<think>": BEGIN, "</think>": END, "<b>": 7})
    assert find_markers(tokenizer, ("<think>", "</think>")) == (BEGIN, END)
    assert find_markers(tokenizer, ("<b>", "</think>")) == (7, END)
    with pytest.raises(UserError, match=r"know the think marker '</b>' as one token\. Pass think_markers="):
        find_markers(tokenizer, ("<b>", "</b>"))
    with pytest.raises(UserError, match=r"Pass tokenizer=\.\.\. to the decoder, or set scope: all"):
        find_markers(None, ("<think>", "</think>"))
