"""Divergences of hand-made distributions, and of random ones against torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, one_hot

from gistgate.rules.divergence import ag, coarse, draft_probs, js, kl, tv
from tests.blocks import SURE, block

HALVES = torch.tensor([0.5, 0.5, 0.0])
SURELY = torch.tensor([0.0, 1.0, 0.0])
LN2 = math.log(2)


def random_pair(vocabulary: int = 7) -> tuple[Tensor, Tensor]:
    p, q = 2 * torch.randn(2, 50, vocabulary, generator=torch.Generator().manual_seed(0))
    return p.softmax(-1), q.softmax(-1)


@pytest.mark.parametrize("divergence", [kl, js, ag, tv])
def test_a_distribution_is_no_way_from_itself(divergence):
    p, _ = random_pair()
    assert torch.allclose(divergence(p, p), torch.zeros(50), atol=1e-6) and (divergence(p, p) >= 0).all()
    assert divergence(HALVES, HALVES) == 0


def test_by_hand():
    assert kl(SURELY, HALVES).item() == pytest.approx(LN2)
    assert tv(SURELY, HALVES).item() == pytest.approx(0.5)
    # the midpoint is (1/4, 3/4, 0)
    assert js(SURELY, HALVES).item() == pytest.approx((math.log(4 / 3) + 0.5 * LN2 + 0.5 * math.log(2 / 3)) / 2)
    assert js(HALVES, torch.tensor([0.0, 0.0, 1.0])).item() == pytest.approx(LN2)


def test_what_the_other_forbids_costs_the_floor():
    assert kl(HALVES, SURELY).item() == pytest.approx(0.5 * math.log(0.5 / 1e-10) + 0.5 * math.log(0.5), rel=1e-5)
    assert ag(HALVES, SURELY).isfinite() and ag(HALVES, SURELY) > LN2


@pytest.mark.parametrize("vocabulary", [7, 300])
def test_as_torch_computes_them(vocabulary: int):
    p, q = random_pair(vocabulary)
    m = (p + q) / 2

    def theirs(a: Tensor, b: Tensor) -> Tensor:
        return kl_div(b.log(), a, reduction="none").sum(-1)

    assert torch.allclose(kl(p, q), theirs(p, q), atol=1e-5)
    assert torch.allclose(js(p, q), (theirs(p, m) + theirs(q, m)) / 2, atol=1e-5)
    assert torch.allclose(ag(p, q), (theirs(m, p) + theirs(m, q)) / 2, atol=1e-5)
    assert (js(p, q) <= LN2).all() and (tv(p, q) <= 1).all()


def test_a_probability_that_underflows_does_no_harm():
    p, q = torch.tensor([1.0, 1e-45]), torch.tensor([1.0, 0.0])
    for divergence in (kl, js, ag, tv):
        assert divergence(p, q) < 1e-6 and divergence(q, p) < 1e-6


def test_coarse_keeps_the_best_and_adds_up_the_rest():
    p, q = torch.tensor([0.1, 0.4, 0.2, 0.3]), torch.tensor([0.4, 0.3, 0.2, 0.1])
    p_coarse, q_coarse = coarse(p, q, k=2)
    assert torch.allclose(p_coarse, torch.tensor([0.4, 0.3, 0.3]))
    assert torch.allclose(q_coarse, torch.tensor([0.3, 0.1, 0.6]))
    assert coarse(p, q)[0] is p


def test_coarse_sees_no_more_than_the_whole():
    p, q = random_pair(300)
    assert (js(*coarse(p, q)) <= js(p, q) + 1e-6).all() and (js(*coarse(p, q)) < js(p, q) - 1e-4).any()


def test_a_draft_without_probabilities_was_certain():
    assert torch.equal(
        draft_probs(block(SURE[0], SURE[0], SURE[0], draft=[2, 1]))[0], one_hot(torch.tensor([2, 1]), 4).float()
    )
    assert draft_probs(block(SURE[0], draft=[])).shape == (1, 0, 4)
