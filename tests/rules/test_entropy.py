"""FLy and SENSE: undecided at the mismatch, and agreement (or a plausible token) behind it."""

from typing import Any

import pytest
import torch

from gistgate.rules.divergence import Fly, Sense
from tests.blocks import SURE, TORN, block, random_block

EVEN = [0.0, 0.0, -99.0, -99.0]
"""0.69 nats, which is half of ln 4."""
FLOOR = [[2.0, 2.0, -4.0, -9.0], SURE[2], SURE[3]]
LAST = [SURE[2], TORN, SURE[3], SURE[0]]
"""Undecided at the second of three positions: one follows."""


def loosely(
    rule: Any, *rows: list[float], draft: list[int], valid: int | None = None
) -> list[bool]:
    return rule.accept(block(*rows, draft=draft, valid=valid))[0].tolist()


def sense(
    *rows: list[float], draft: list[int], valid: int | None = None, **settings: Any
) -> list[bool]:
    return loosely(Sense(**settings), *rows, draft=draft, valid=valid)


@pytest.mark.parametrize(
    "settings, rows, draft, expected",
    [
        (
            {"window": 2},
            [TORN, SURE[2], SURE[3], SURE[0]],
            [1, 2, 3],
            [1, 1, 1],
        ),  # tolerated: two matches follow
        (
            {"window": 2},
            [TORN, SURE[2], SURE[3], SURE[0]],
            [1, 2, 0],
            [0, 1, 0],
        ),  # the window meets a second mismatch
        (
            {"window": 1},
            [SURE[0], SURE[2], SURE[3]],
            [1, 2],
            [0, 1],
        ),  # a decided target is not overruled
        (
            {"window": 0},
            [TORN, SURE[2], TORN, SURE[0]],
            [1, 3, 1],
            [1, 0, 1],
        ),  # the entropy alone decides
        ({"window": 2}, LAST, [2, 1, 3], [1, 0, 1]),  # a strict window has to fit
        (
            {"window": 2, "strict_window": False},
            LAST,
            [2, 1, 3],
            [1, 1, 1],
        ),  # one that is cut has not
        (
            {"window": 2, "strict_window": False},
            LAST,
            [2, 1, 0],
            [1, 0, 0],
        ),  # a mismatch inside it still counts
        ({"window": 2}, [TORN, TORN, SURE[2], SURE[3], SURE[0]], [1, 1, 2, 3], [0, 1, 1, 1]),
        ({"theta": 0.69, "window": 0}, [EVEN, EVEN], [1], [1]),
        ({"theta": 0.70, "window": 0}, [EVEN, EVEN], [1], [0]),
        ({"theta": 0.49, "window": 0, "entropy": "normalised"}, [EVEN, EVEN], [1], [1]),
        ({"theta": 0.51, "window": 0, "entropy": "normalised"}, [EVEN, EVEN], [1], [0]),
        ({"window": 1}, FLOOR, [2, 2], [1, 1]),
    ],
)
def test_fly_by_hand(
    settings: dict[str, Any], rows: list[list[float]], draft: list[int], expected: list[int]
):
    assert loosely(Fly(**settings), *rows, draft=draft) == [bool(one) for one in expected]


@pytest.mark.parametrize("window", [0, 1, 2, 6])
@pytest.mark.parametrize("strict_window", [True, False])
def test_fly_position_by_position(window: int, strict_window: bool):
    judged = random_block(seed=5, batch=300, num=9)
    opinion = Fly(theta=0.5, window=window, strict_window=strict_window).accept(judged)
    for row in range(300):
        num, match = int(judged.valid[row].sum()), judged.match[row].tolist()
        for j in range(num):
            behind = match[j + 1 : min(j + 1 + window, num)]
            fits = not strict_window or j + window < num
            expected = match[j] or (judged.entropy3[row, j].item() >= 0.5 and fits and all(behind))
            assert opinion[row, j].item() == expected


def test_fly_sampled_windows_count_native_accepts():
    """At temperature 1 agreement means that the native test passes, whatever the argmax is."""
    rows, q = [TORN, TORN, TORN], [[0.1, 0.9, 0.0, 0.0]] * 2
    refused_then_kept = block(*rows, draft=[1, 1], q=q, uniforms=[0.9, 0.1, 0.5], greedy=False)
    assert refused_then_kept.strict.tolist() == [[False, True]]
    assert Fly(window=1).accept(refused_then_kept).tolist() == [[True, True]]
    refused_twice = block(*rows, draft=[1, 1], q=q, uniforms=[0.9, 0.9, 0.5], greedy=False)
    assert not Fly(window=1).accept(refused_twice).any()


def test_sense_never_where_the_target_is_decided_nor_above_the_whole_entropy():
    assert sense(SURE[0], SURE[2], SURE[3], draft=[1, 2]) == [False, True]
    for size in range(2, 40):
        assert sense([0.7] * size, [0.7] * size, draft=[1], gamma=1.0) == [False]


@pytest.mark.parametrize(
    "behind, tau_c, expected",
    [
        ([2, 2, 2, 2], 0.0, True),
        ([2, 2, 2, 3], 0.25, True),  # one mismatch of four
        ([2, 2, 2, 3], 0.24, False),
        ([2, 3, 2, 3], 0.25, False),
        ([2, 2, 2, 2, 3], 0.0, True),  # the fifth lies outside the window
        ([2], 0.25, True),  # fewer follow at the end of the draft
        ([3], 0.25, False),
        ([2, 2, 3], 0.33, False),  # a third, of three
        ([2, 2, 3], 0.34, True),
        ([], 0.25, False),  # nothing follows: no evidence of calm
        ([], 1.0, True),
    ],
)
def test_sense_by_the_continuation_alone(behind: list[int], tau_c: float, expected: bool):
    rows = [TORN, *[SURE[2]] * (len(behind) + 1)]
    assert sense(*rows, draft=[1, *behind], k=0, tau_c=tau_c)[0] == expected


@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("both", [True, False])
def test_sense_position_by_position(window: int, both: bool):
    judged = random_block(seed=5, batch=200, num=9)
    opinion = Sense(gamma=0.3, k=2, window=window, tau_c=0.34, con_requires_topk=both).accept(
        judged
    )
    share = judged.entropy / torch.log(torch.tensor(6.0))
    for row in range(200):
        num, match = int(judged.valid[row].sum()), judged.match[row].tolist()
        for j in range(num):
            behind = match[j + 1 : min(j + 1 + window, num)]
            calm = bool(behind) and 1 - sum(behind) / len(behind) <= 0.34
            top = judged.draft_rank[row, j].item() < 2
            routes = (top and calm) if both else (top or calm)
            assert opinion[row, j].item() == (match[j] or (share[row, j].item() > 0.3 and routes))
