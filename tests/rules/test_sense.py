"""SENSE: undecided at the mismatch, and a plausible token or a calm continuation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.rules import make_rule
from gistgate.rules.entropy import Sense
from tests.blocks import SURE, TORN, accepted, block, random_block

CALM = {"k": 0, "tau_c": 0.25}
"""Only the continuation decides."""
PLAUSIBLE = {"tau_c": -1.0}
"""Only the rank decides."""


def loosely(*rows: list[float], draft: list[int], valid: int | None = None, **settings: Any) -> list[bool]:
    return Sense(**settings).accept(block(*rows, draft=draft, valid=valid), {})[0].tolist()


def test_never_where_the_target_is_decided():
    assert loosely(SURE[0], SURE[2], SURE[3], draft=[1, 2]) == [False, True]


def test_always_the_second_of_an_even_split():
    assert loosely(TORN, TORN, TORN, draft=[1, 1], **PLAUSIBLE) == [True, True]


def test_an_even_spread_is_not_more_than_the_whole_entropy():
    for size in range(2, 40):
        assert loosely([0.7] * size, [0.7] * size, draft=[1], gamma=1.0) == [False]


@pytest.mark.parametrize("k, expected", [(0, False), (1, False), (2, False), (3, True)])
def test_the_rank_alone(k: int, expected: bool):
    undecided = [2.0, 1.5, 1.0, -3.0]
    assert loosely(undecided, SURE[2], draft=[2], k=k, **PLAUSIBLE) == [expected]


def test_a_tie_with_the_best_is_closed_at_k_1_and_open_at_k_2():
    assert loosely(TORN, SURE[2], draft=[1], k=1, **PLAUSIBLE) == [False]
    assert loosely(TORN, SURE[2], draft=[1], k=2, **PLAUSIBLE) == [True]


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
def test_the_continuation_alone(behind: list[int], tau_c: float, expected: bool):
    rows = [TORN, *[SURE[2]] * (len(behind) + 1)]
    assert loosely(*rows, draft=[1, *behind], k=0, tau_c=tau_c)[0] == expected


def test_the_continuation_ends_with_the_row_s_own_draft():
    rows, draft = [TORN, SURE[2], SURE[2], SURE[2]], [1, 2, 3]
    assert loosely(*rows, draft=draft, valid=2, **CALM) == [True, True, False]
    assert not loosely(*rows, draft=draft, valid=3, **CALM)[0]
    assert not loosely(*rows, draft=draft, valid=1, **CALM)[0]


@pytest.mark.parametrize("window", [1, 2, 4])
def test_the_density_is_the_share_of_mismatches_among_what_follows(window: int):
    judged = block(*[SURE[2]] * 6, draft=[1, 3, 2, 3, 2], valid=5)
    missed, found = [1, 1, 0, 1, 0], Sense(window=window).density(judged)[0].tolist()
    for place in range(5):
        behind = missed[place + 1 : place + 1 + window]
        assert found[place] == pytest.approx(sum(behind) / len(behind) if behind else 1.0)


def test_a_full_window_has_to_fit():
    rows = [TORN, *[SURE[2]] * 5]
    assert loosely(*rows[:5], draft=[1, 2, 2, 2], **CALM, full_window=True)[0] is False
    assert loosely(*rows, draft=[1, 2, 2, 2, 2], **CALM, full_window=True)[0] is True


@pytest.mark.parametrize("draft, either, both", [(1, True, True), (3, True, False)])
def test_calm_may_require_a_plausible_token(draft: int, either: bool, both: bool):
    rows = [TORN, *[SURE[2]] * 3]
    settings = {"k": 2, "tau_c": 0.0}
    assert loosely(*rows, draft=[draft, 2, 2], **settings)[0] == either
    assert loosely(*rows, draft=[draft, 2, 2], **settings, con_requires_topk=True)[0] == both
    # plausible alone is not enough then
    assert loosely(*rows, draft=[draft, 3, 3], **settings, con_requires_topk=True)[0] is False


@pytest.mark.parametrize("window", [1, 2, 6])
@pytest.mark.parametrize("gamma", [0.05, 0.3, 0.6])
def test_calm_without_any_mismatch_in_full_windows_is_fly(window: int, gamma: float):
    """Both compare the normalised entropy, one with > and one with >=; no entropy here equals gamma."""
    for seed in range(3):
        judged = random_block(seed=seed, batch=300, num=9)
        sense = Sense(gamma=gamma, k=0, tau_c=0.0, window=window, full_window=True)
        fly = make_rule("fly-paper", theta=gamma, window=window)
        assert torch.equal(sense.accept(judged, {}), fly.accept(judged, {}))
        assert (accepted(sense, judged).length > accepted(make_rule("exact"), judged).length).any()


@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("both", [True, False])
def test_the_formula_position_by_position(window: int, both: bool):
    judged = random_block(seed=5, batch=200, num=9)
    opinion = Sense(gamma=0.3, k=2, window=window, tau_c=0.34, con_requires_topk=both).accept(judged, {})
    share = judged.entropy / torch.log(torch.tensor(6.0))
    for row in range(200):
        num, match = int(judged.valid[row].sum()), judged.match[row].tolist()
        for j in range(num):
            behind = match[j + 1 : min(j + 1 + window, num)]
            calm = bool(behind) and 1 - sum(behind) / len(behind) <= 0.34
            top = judged.draft_rank[row, j].item() < 2
            routes = (top and calm) if both else (top or calm)
            assert opinion[row, j].item() == (match[j] or (share[row, j].item() > 0.3 and routes))
