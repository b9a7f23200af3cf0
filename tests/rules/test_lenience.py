"""Lenience: the native test with q made smaller."""

from __future__ import annotations

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from gistgate.rules.thresholds import Lenience
from tests.architectures import pair
from tests.blocks import SPLIT, accepted, block, random_block
from tests.rules.enumerating import P, Q, first_token

THIRDS = torch.tensor([0.2, 0.4, 0.4]).log().tolist()
DRAFT = [0.8, 0.1, 0.1]


@pytest.mark.parametrize(
    "lenience, uniform, expected",
    [
        (1.0, 0.24, True),  # p / q = 1/4
        (1.0, 0.26, False),
        (0.5, 0.49, True),
        (0.5, 0.51, False),
        (0.25, 0.999, True),
    ],
)
def test_sometimes(lenience: float, uniform: float, expected: bool):
    judged = block(THIRDS, THIRDS, draft=[0], q=[DRAFT], uniforms=[uniform, 0.5], greedy=False)
    assert Lenience(lenience).accept(judged, {}).tolist() == [[expected]]


def test_a_draft_without_probabilities_counts_as_certain():
    for lenience, expected in ((1.0, False), (0.5, True)):
        judged = block(THIRDS, THIRDS, draft=[0], uniforms=[0.3, 0.5], greedy=False)
        assert Lenience(lenience).accept(judged, {}).tolist() == [[expected]]


@pytest.mark.parametrize("lenience", [1.0, 0.75, 0.5, 0.25])
def test_the_texts_are_distributed_as_the_formula_says(lenience: float):
    """Accepted: min(q, p / l). The rest: the residual, which is (1/2, 1/2, 0) here."""
    kept = torch.minimum(Q, P / lenience)
    wanted = kept + (1 - kept.sum()) * torch.tensor([0.5, 0.5, 0.0])
    assert torch.allclose(first_token(Lenience(lenience)), wanted, atol=1e-6)
    assert (wanted <= P / lenience + 1e-6).all()
    if lenience == 1:
        assert torch.allclose(wanted, P)


def test_at_one_it_is_the_native_test():
    for seed in range(4):
        judged = random_block(seed, batch=300, temperature=1.0, with_q=seed % 2 == 0)
        mine, exact = accepted(Lenience(1.0), judged), accepted(make_rule("exact"), judged)
        assert torch.equal(mine.length, exact.length) and torch.equal(mine.own_ids, exact.own_ids)
        assert (accepted(Lenience(0.3), judged).length > exact.length).any()


def test_greedy_requests_are_refused_with_an_alternative():
    target, draft = pair("llama", 3, 0.5)
    decoder = Decoder(target, ModelDrafter(draft), Lenience(), 2)
    with pytest.raises(UserError, match="greedy.*'prob-ratio'"):
        decoder.generate([[1, 0, 2]], max_new_tokens=3)
    assert len(decoder.generate([[1, 0, 2]], max_new_tokens=3, sampling=Sampling(1.0))[0].ids) == 3


def test_a_greedy_block_is_judged_strictly():
    assert Lenience(1e-9).accept(block(SPLIT, SPLIT, SPLIT, draft=[0, 1]), {}).tolist() == [[True, False]]
