"""Prompt lookup copies what followed the latest n-gram before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.drafters.text import PromptLookup


@pytest.mark.parametrize(
    "text, num, expected",
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),  # the trigram 1 2 3
        ([9, 2, 3, 7, 8, 2, 3], 9, [7, 8, 2, 3]),  # only the bigram; shorter than asked for
        ([5, 6, 5], 4, [6, 5]),  # only the last token
        ([1, 2, 3], 4, []),  # nothing repeats
        ([7], 4, []),
        ([7, 7], 4, [7]),  # the match may overlap itself
        ([7, 7, 7, 7], 4, [7]),
        ([3, 1, 2, 5, 1, 2, 6, 3, 1, 2], 1, [5]),  # a longer hit wins over an earlier shorter one
    ],
)
def test_continuation(text: list[int], num: int, expected: list[int]):
    assert PromptLookup().continuation(text, num) == expected


def test_first_or_last_occurrence():
    text = [1, 2, 5, 1, 2, 6, 1, 2]
    assert PromptLookup(pick="first").continuation(text, 1) == [5]
    assert PromptLookup(pick="last").continuation(text, 1) == [6]


def test_the_longest_n_gram_is_a_setting():
    text = [4, 2, 5, 3, 2, 6, 3, 2]
    assert PromptLookup(n_max=1).continuation(text, 1) == [5]
    assert PromptLookup(n_max=2).continuation(text, 1) == [6]


def test_every_row_has_its_own_length():
    sampling: Any = {"vocabulary": 10, "sampling": Sampling(), "uniforms": None, "want_q": False}
    draft = PromptLookup().propose([[1, 2, 1], [1, 2, 3], [4, 5, 6, 7, 4]], 3, **sampling)
    assert draft.valid.sum(-1).tolist() == [2, 0, 3]
    assert torch.equal(draft.valid, torch.arange(3) < draft.valid.sum(-1, keepdim=True))
    assert draft.ids[0, :2].tolist() == [2, 1] and draft.ids[2].tolist() == [5, 6, 7]
    assert draft.q is None and draft.forwards == 0 and not PromptLookup.gives_q


def test_the_target_reads_no_more_than_was_found():
    sampling: Any = {"vocabulary": 10, "sampling": Sampling(), "uniforms": None, "want_q": False}
    assert PromptLookup().propose([[1, 2, 1], [1, 2, 3]], 8, **sampling).ids.tolist() == [[2, 1], [0, 0]]
    assert PromptLookup().propose([[1, 2], [3]], 8, **sampling).ids.shape == (2, 0)


@pytest.mark.parametrize("wrong", [{"n_max": 0}, {"pick": "best"}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="lookup: n_max"):
        PromptLookup(**wrong)


def test_drafters_go_by_name():
    assert list(DRAFTERS) == ["model", "tree", "lookup", "lookup-tree", "suffix", "recycle", "cascade", "hybrid"]


@pytest.mark.parametrize("drafter_id", ["lookup", "lookup-tree", "suffix", "recycle"])
def test_ids_that_only_the_tokenizer_knows_are_not_proposed(drafter_id: str):
    """150 stands in the prompt, but the models know 100 ids."""
    drafter = DRAFTERS[drafter_id]()
    drafter.start(1)
    text = [1, 2, 3, 150, 4, 1, 2]
    draft = drafter.propose([text], 4, vocabulary=100, sampling=Sampling(), uniforms=None, want_q=False)
    assert draft.ids[draft.valid].tolist() == [3]
