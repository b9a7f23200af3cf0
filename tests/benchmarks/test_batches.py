"""Batches of prompts: all are full, no prompt counts twice, and the option that names the size is in the refusal."""

from __future__ import annotations

import pytest

from benchmarks.batches import batches_of
from gistgate.errors import UserError

IDS = [[1], [2], [3], [4], [5]]


def test_batches_are_full_and_no_prompt_comes_twice():
    assert batches_of(IDS, 2, "--batch") == [[[1], [2]], [[3], [4]]]
    assert batches_of(IDS, 1, "--batch", least=5) == [[one] for one in IDS]


@pytest.mark.parametrize(
    ("count", "size", "least", "said"),
    [
        (2, 3, 1, "2 prompts do not fill a batch of 3. Name sizes from 1 to 2 with --batches."),
        (5, 2, 4, "5 prompts do not fill 4 batches of 2, none of which comes twice. Name sizes from 1 to 1 with"),
        (3, 1, 4, "3 prompts do not fill 4 batches of 1, none of which comes twice. Take more prompts."),
        (0, 1, 1, "0 prompts do not fill a batch of 1. Take more prompts."),
        (2, 0, 1, "2 prompts do not fill a batch of 0. Name sizes from 1 to 2"),
    ],
)
def test_too_few_prompts_are_refused_with_what_helps(count: int, size: int, least: int, said: str):
    with pytest.raises(UserError, match=said):
        batches_of(IDS[:count], size, "--batches", least)
