"""TensorRT-LLM's relaxed acceptance: near the best, among the top, while thinking."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.thresholds import TrtRelaxed
from tests.blocks import TORN, accepted, block, random_block

P = [math.log(0.5), math.log(0.3), math.log(0.2), -99.0]


def loosely(draft: list[int], **settings: Any) -> list[bool]:
    judged = block(*[P] * (len(draft) + 1), draft=draft)
    return TrtRelaxed(scope="all", **settings).accept(judged, {})[0].tolist()


@pytest.mark.parametrize(
    "mode, delta, expected",
    [
        ("diff", 0.19, [True, False, False]),  # 0.5 - 0.3 = 0.2, 0.5 - 0.2 = 0.3
        ("diff", 0.21, [True, True, False]),
        ("diff", 0.31, [True, True, True]),
        ("ratio", 0.39, [True, False, False]),  # 0.3 / 0.5 = 0.6, 0.2 / 0.5 = 0.4
        ("ratio", 0.41, [True, True, False]),
        ("ratio", 0.61, [True, True, True]),
    ],
)
def test_delta_is_a_difference_or_a_share(mode: Any, delta: float, expected: list[bool]):
    assert loosely([0, 1, 2], mode=mode, delta=delta) == expected


def test_never_below_the_top():
    assert loosely([1, 2, 3], k=2, delta=1.0) == [True, False, False]


def test_an_undecided_target_leaves_the_top_alone_to_decide():
    """p(t*) = 0.5 <= delta: only k counts, whatever the token's own probability is."""
    assert loosely([1, 2, 3], k=4) == [True, True, True]


@pytest.mark.parametrize("settings", [{"delta": 0.0}, {"k": 1}, {"delta": 0.0, "mode": "ratio"}])
def test_closed_not_even_a_tie_passes(settings: dict[str, Any]):
    judged = block(TORN, TORN, draft=[1])
    assert not TrtRelaxed(scope="all", **settings).accept(judged, {}).any()
    assert TrtRelaxed(scope="all", delta=1e-6).accept(judged, {}).all()


def test_behind_the_end_marker_the_answer_is_strict():
    judged = block(*[P] * 5, draft=[1, 0, 0, 1], thinking=[True, True, False, False])
    assert TrtRelaxed().accept(judged, {}).tolist() == [[True, True, False, False]]
    # the match behind the marker stays, the mismatch does not
    assert accepted(TrtRelaxed(), judged).length.tolist() == [3]


def test_markers_are_asked_for_only_where_they_count():
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<a>": 4, "</a>": 5})
    assert TrtRelaxed().context(tokenizer, ("<a>", "</a>")).protocol_ids == (4, 5)
    assert TrtRelaxed(scope="all").context(None, ("<a>", "</a>")).protocol_ids == ()


def test_the_whole_difference_and_the_whole_share_are_the_same():
    judged = random_block(batch=300)
    top = accepted(make_rule("top-k", k=3), judged).length
    for mode in ("diff", "ratio"):
        assert torch.equal(accepted(TrtRelaxed(scope="all", k=3, delta=1.0, mode=mode), judged).length, top)


def test_a_share_is_the_control_prob_ratio():
    """Without a rank: p(x) >= (1 - delta) p(t*)."""
    judged = random_block(batch=300)
    relaxed = accepted(TrtRelaxed(scope="all", k=99, delta=0.7, mode="ratio"), judged)
    control = accepted(make_rule("prob-ratio", r=0.3), judged)
    assert torch.equal(relaxed.length, control.length)
    assert (relaxed.length > accepted(make_rule("exact"), judged).length).any()
