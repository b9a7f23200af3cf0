"""Segments are told from text: whatever the tokenizer cuts it into."""

import pytest

from gistgate.core.utils import UserError
from gistgate.segments import writing as boundaries
from gistgate.segments.writing import Boundaries
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()


def pieces(style, text):
    """The segments of a text, as text."""
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return [TOKENIZER.decode(segment) for segment in Boundaries(TOKENIZER, style).cut(ids)]


def test_blank_lines_end_segments_though_two_tokens_make_one():
    assert pieces("blank-line", "one\ntwo\n\nthree") == ["one\ntwo\n\n", "three"]


def test_sentences_end_at_their_point_but_decimals_do_not():
    assert pieces("sentence", "It is 3.5 now. Then!\nSo") == ["It is 3.5 now.", " Then!", "\nSo"]
    assert pieces("sentence", "It has 82.\n#") == ["It has 82.\n", "#"]


def test_steps_are_lines_and_a_pattern_is_what_it_says():
    assert pieces("step", "a\nb\n") == ["a\n", "b\n"]
    assert pieces("re:;$", "a;b") == ["a;", "b"]


def test_what_is_remembered_of_tails_is_bounded(monkeypatch):
    monkeypatch.setattr(boundaries, "MOST_TAILS", 8)
    found = Boundaries(TOKENIZER, "step")
    ids = TOKENIZER.encode("one\ntwo three four\nfive", add_special_tokens=False)
    assert found.cut(ids) == found.cut(ids) and len(found.cut(ids)) == 3 and len(found._known) <= 8


def test_an_end_id_ends_whatever_it_reads():
    cut = Boundaries(TOKENIZER, "step", end_ids=[2]).cut([5, 2, 6])
    assert cut == [[5, 2], [6]]


@pytest.mark.parametrize("style", ["paragraph", "re:("])
def test_an_unknown_style_is_refused_with_a_remedy(style):
    with pytest.raises(UserError, match=r"segment style .*(Use|Correct)"):
        Boundaries(TOKENIZER, style)
