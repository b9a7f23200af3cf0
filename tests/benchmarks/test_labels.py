"""Labels one rollout at a time: the walk, and sizes with which no problem comes again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.labels import Plain, check_sizes, rate, summary
from gistgate.errors import UserError
from tests.architectures import greedy, pair, prompts

NUM = 16


class Meaning:
    """A task whose answers keep their meaning if their last token stays."""

    def text(self, _tokenizer: Any, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def same_meaning(self, _doc: Any, text: str, expected: str) -> bool:
        return text.split()[-1:] == expected.split()[-1:]


def plain() -> Plain:
    target, draft = pair("llama", noise=0.3)
    models: Any = SimpleNamespace(target=target, draft=draft, draft_model=draft, tokenizer=None)
    task: Any = Meaning()
    return Plain(models, task, {"max_new_tokens": NUM, "eos_ids": [], "stops": []})


def test_every_mismatch_of_the_walk_gets_a_label():
    ids = prompts(9)[0]
    labels = plain().labels({"ids": ids, "doc": {}})
    places = [place for place, _ in labels]
    assert labels and places == sorted(set(places)) and places[-1] < NUM
    first = plain().first_mismatch(ids, greedy("llama", tuple(ids), NUM), 0)
    assert first is not None and first[0] == places[0]


def test_sizes_with_which_a_problem_would_come_again_are_refused():
    check_sizes(2, 40, 4, prompts=80)
    with pytest.raises(UserError, match="3 rounds of 40 problems need 120 that can be mined, and there are 80"):
        check_sizes(3, 40, 4, prompts=80)
    with pytest.raises(UserError, match="--singly 5 is more than --problems 4"):
        check_sizes(2, 4, 5, prompts=80)


def test_problems_without_a_mismatch_are_no_rate():
    with pytest.raises(UserError, match="no mismatch to label"):
        rate(0, 0.0)


def test_ratios_are_those_of_rounds():
    found = summary([{"ours": 4.0, "plain": 2.0, "ratio": 2.0}, {"ours": 9.0, "plain": 3.0, "ratio": 3.0}])
    assert found["ratio"]["mean"] == 2.5 and found["labels_per_second"] == {"ours": 6.5, "plain": 2.5}
