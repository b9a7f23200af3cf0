"""Typical acceptance: enough is a fixed probability, or less where the target knows little."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gistgate.rules.thresholds import Typical
from tests.blocks import SPLIT, accepted, block, random_block
from tests.rules.enumerating import P, first_token

HIGH = [0.999, 0.999]
"""Numbers with which the strict test refuses whatever it may."""


def of(*p: float) -> list[float]:
    return [math.log(x) for x in p]


def verdict(rule: Typical, *rows: list[float], draft: list[int], **more: Any) -> list[bool]:
    more = {"greedy": False, "uniforms": [0.999] * len(rows), **more}
    return rule.accept(block(*rows, draft=draft, **more), {})[0].tolist()


PEAKED = of(0.8, 0.11, 0.07, 0.02)
"""H = 0.69 nats, so delta exp(-H) = 0.15 and eps = 0.09 decides."""
FLAT = [2.0] * 6 + [0.0] * 2
"""Six tokens of 0.1594 and two of 0.0216; H = 1.924 nats, so delta exp(-H) = 0.0438 decides."""


def test_sometimes():
    assert verdict(Typical(), PEAKED, PEAKED, PEAKED, PEAKED, draft=[1, 2, 3]) == [True, False, False]
    assert verdict(Typical(), FLAT, FLAT, FLAT, draft=[5, 7]) == [True, False]


def test_the_looser_of_the_two_thresholds_decides():
    assert verdict(Typical(eps=0.12), PEAKED, PEAKED, draft=[1]) == [False]
    assert verdict(Typical(delta=0.2), PEAKED, PEAKED, draft=[1]) == [True]
    assert verdict(Typical(delta=0.1), PEAKED, PEAKED, draft=[2]) == [True]
    assert verdict(Typical(eps=1.0, delta=0.1), FLAT, FLAT, draft=[7]) == [True]


@pytest.mark.parametrize("scale, expected", [(9.0, [0, 0, 0]), (1.2, [1, 0, 0]), (0.5, [1, 1, 0]), (0.0, [1, 1, 1])])
def test_the_scale_moves_both(scale: float, expected: list[int]):
    assert verdict(Typical(scale), PEAKED, PEAKED, PEAKED, PEAKED, draft=[1, 2, 3]) == [bool(one) for one in expected]


def test_the_other_form():
    """exp(-0.4 * 0.69) = 0.76; scaled by 0.1 it lies between the second and the third token."""
    assert verdict(Typical(form="ascend"), PEAKED, PEAKED, PEAKED, draft=[0, 1]) == [True, False]
    assert verdict(Typical(0.1, form="ascend"), PEAKED, PEAKED, PEAKED, draft=[1, 2]) == [True, False]
    sure = of(1 - 3e-6, 1e-6, 1e-6, 1e-6)
    assert Typical(form="ascend").log_threshold(block(sure, draft=[]).entropy).item() == pytest.approx(math.log(0.95))


def test_as_the_formula_of_medusa():
    """Their entropy adds 1e-5 inside the logarithm, which moves the threshold by less than the 1e-3 spared here."""
    judged = random_block(batch=500, vocabulary=40, temperature=1.0)
    p = judged.logits[:, :-1].softmax(-1)
    p_x = p.gather(-1, judged.draft_ids[..., None]).squeeze(-1)
    entropy = -(p * (p + 1e-5).log()).sum(-1)
    threshold = torch.minimum(torch.full_like(entropy, 0.09), 0.3 * (-entropy).exp())
    clear = (p_x / threshold - 1).abs() > 1e-3
    ours = Typical().accept(judged, {})
    assert (
        torch.equal(ours[clear], (p_x > threshold)[clear])
        and ours.any()
        and not ours.all()
        and clear.float().mean() > 0.9
    )


def test_greedy_is_exact_unless_asked():
    judged = block(SPLIT, SPLIT, SPLIT, SPLIT, draft=[0, 1, 3])
    for superset in (True, False):
        assert Typical(superset=superset).accept(judged, {}).tolist() == [[True, False, False]]
    assert Typical(greedy="raw").accept(judged, {}).tolist() == [[True, True, False]]


def test_alone_it_refuses_what_sampling_would_keep():
    """p(x) = 0.02 but q(x) = 0.01: the strict test keeps it, typical acceptance does not."""
    judged = block(PEAKED, PEAKED, draft=[3], q=[[0.9, 0.05, 0.04, 0.01]], uniforms=HIGH, greedy=False)
    assert accepted(Typical(), judged).length.tolist() == [1]
    assert accepted(Typical(superset=False), judged).length.tolist() == [0]


def test_alone_it_draws_from_p():
    """Threshold 0.3: x = 2 is always refused, and replaced by a draw from p rather than from the residual."""
    assert Typical(eps=0.3, delta=9.0, superset=False).log_threshold(torch.ones(1)).exp().item() == pytest.approx(0.3)
    wanted = torch.tensor([0.25, 0.25, 0.0]) + 0.5 * P
    assert torch.allclose(first_token(Typical(eps=0.3, delta=9.0, superset=False)), wanted, atol=1e-6)


def test_beside_the_strict_test_it_draws_from_the_residual():
    """What the strict test refuses of x = 2 (half of it) goes to the other two alone, which makes it p itself."""
    assert torch.allclose(first_token(Typical(eps=0.3, delta=9.0)), P, atol=1e-6)
