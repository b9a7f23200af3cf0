"""FLy: undecided at the mismatch, agreement behind it."""

from __future__ import annotations

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.entropy import Fly
from tests.blocks import SURE, TORN, accepted, block, random_block


def loosely(rule: Fly, *rows: list[float], draft: list[int], valid: int | None = None) -> list[bool]:
    return rule.accept(block(*rows, draft=draft, valid=valid), {})[0].tolist()


def test_closed_gate_never_accepts_a_mismatch():
    assert not any(loosely(Fly(theta=9.9, window=0), TORN, TORN, TORN, draft=[1, 1]))


def test_a_match_is_always_kept():
    assert all(loosely(Fly(), SURE[0], SURE[1], SURE[2], draft=[0, 1]))


@pytest.mark.parametrize(
    "draft, expected",
    [
        ([1, 2, 3], [True, True, True]),  # tolerated: two matches follow
        ([1, 2, 0], [False, True, False]),  # refused: the window meets a second mismatch
    ],
)
def test_sometimes(draft: list[int], expected: list[bool]):
    assert loosely(Fly(window=2), TORN, SURE[2], SURE[3], SURE[0], draft=draft) == expected


def test_a_decided_target_is_not_overruled():
    assert loosely(Fly(window=1), SURE[0], SURE[2], SURE[3], draft=[1, 2]) == [False, True]


def test_an_entropy_of_theta_is_enough():
    judged = block(TORN, SURE[2], SURE[3], draft=[1, 2])
    theta = float(judged.entropy3[0, 0])
    assert Fly(theta=theta, window=1, entropy="top3").accept(judged, {})[0, 0]
    assert not Fly(theta=theta + 1e-6, window=1, entropy="top3").accept(judged, {})[0, 0]


def test_without_a_window_the_entropy_alone_decides():
    assert loosely(Fly(window=0), TORN, SURE[2], TORN, SURE[0], draft=[1, 3, 1]) == [True, False, True]


def test_a_strict_window_has_to_fit_a_truncated_one_has_not():
    rows, draft = [SURE[2], TORN, SURE[3], SURE[0]], [2, 1, 3]
    assert loosely(Fly(window=2), *rows, draft=draft) == [True, False, True]
    assert loosely(Fly(window=2, strict_window=False), *rows, draft=draft) == [True, True, True]
    # a second mismatch inside the truncated window still counts
    assert loosely(Fly(window=2, strict_window=False), *rows, draft=[2, 1, 0]) == [True, False, False]


def test_the_window_ends_with_the_row_s_own_draft():
    """The block is wider than this row's draft, because a neighbour's is longer."""
    rows, draft = [TORN, SURE[2], SURE[3], SURE[0]], [1, 2, 0]
    assert not loosely(Fly(window=2), *rows, draft=draft, valid=2)[0]
    assert loosely(Fly(window=2, strict_window=False), *rows, draft=draft, valid=2)[0]
    assert not loosely(Fly(window=2, strict_window=False), *rows, draft=draft, valid=3)[0]


@pytest.mark.parametrize("window", [1, 2, 6])
def test_a_block_no_longer_than_the_window_is_strict(window: int):
    for num in range(window + 1):
        judged = random_block(seed=num, batch=400, num=num)
        assert torch.equal(
            accepted(Fly(theta=0.0, window=window), judged).length, accepted(make_rule("exact"), judged).length
        )


@pytest.mark.parametrize("window", [0, 1, 2, 6])
@pytest.mark.parametrize("strict_window", [True, False])
def test_the_formula_position_by_position(window: int, strict_window: bool):
    judged = random_block(seed=5, batch=300, num=9)
    rule = Fly(theta=0.5, window=window, strict_window=strict_window)
    opinion = rule.accept(judged, {})
    for row in range(300):
        num = int(judged.valid[row].sum())
        match = judged.match[row].tolist()
        for j in range(num):
            behind = match[j + 1 : min(j + 1 + window, num)]
            fits = not strict_window or j + window < num
            expected = match[j] or (judged.entropy3[row, j].item() >= 0.5 and fits and all(behind))
            assert opinion[row, j].item() == expected


def test_two_close_mismatches_both_stay_refused():
    rows = [TORN, TORN, SURE[2], SURE[3], SURE[0]]
    assert loosely(Fly(window=2), *rows, draft=[1, 1, 2, 3]) == [False, True, True, True]
    assert loosely(Fly(window=2), TORN, SURE[2], TORN, SURE[3], SURE[2], SURE[0], draft=[1, 2, 1, 3, 2]) == [
        False,
        True,
        True,
        True,
        True,
    ]


def test_the_two_entropies_have_two_units():
    """An even split in two is 0.69 nats, which is half of ln 4."""
    even = [0.0, 0.0, -99.0, -99.0]
    assert loosely(Fly(theta=0.69, window=0), even, even, draft=[1]) == [True]
    assert loosely(Fly(theta=0.70, window=0), even, even, draft=[1]) == [False]
    assert loosely(Fly(theta=0.49, window=0, entropy="normalised"), even, even, draft=[1]) == [True]
    assert loosely(Fly(theta=0.51, window=0, entropy="normalised"), even, even, draft=[1]) == [False]


def test_the_floor_refuses_what_entropy_and_window_let_pass():
    rows = [[2.0, 2.0, -4.0, -9.0], SURE[2], SURE[3]]
    assert loosely(Fly(window=1), *rows, draft=[2, 2]) == [True, True]
    assert loosely(Fly(window=1, p_min=0.01), *rows, draft=[2, 2]) == [False, True]
    assert loosely(Fly(window=1, p_min=0.4), *rows, draft=[1, 2]) == [True, True]


def test_sampled_windows_count_native_accepts():
    """At temperature 1 agreement means that the native test passes, whatever the argmax is."""
    rows, q = [TORN, TORN, TORN], [[0.1, 0.9, 0.0, 0.0]] * 2
    refused_then_kept = block(*rows, draft=[1, 1], q=q, uniforms=[0.9, 0.1, 0.5], greedy=False)
    assert refused_then_kept.strict.tolist() == [[False, True]]
    assert Fly(window=1).accept(refused_then_kept, {}).tolist() == [[True, True]]
    refused_twice = block(*rows, draft=[1, 1], q=q, uniforms=[0.9, 0.9, 0.5], greedy=False)
    assert not Fly(window=1).accept(refused_twice, {}).any()
