"""How an opinion becomes a prefix: longest run, reasons, and the target's own token behind it, and its draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.rule import Rule, draw, residual, settle, target_draw
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from tests.blocks import SPLIT, SURE, TORN, accepted, block


@dataclass(frozen=True)
class Says(Rule):
    """A rule with a fixed opinion."""

    opinion: Tensor
    superset: bool = True
    needs: frozenset[str] = frozenset()

    def accept(self, block: Block, state: Any) -> Tensor:
        return self.opinion


FIFTHS = [math.log(x) for x in (0.5, 0.3, 0.2)]
flags = st.lists(st.booleans(), min_size=0, max_size=9)


@settings(max_examples=200, deadline=None)
@given(matches=flags, opinions=st.lists(st.booleans(), min_size=9, max_size=9), num_valid=st.integers(0, 9))
@pytest.mark.parametrize("superset", [True, False])
def test_the_longest_accepted_prefix_stays(superset: bool, matches: list[bool], opinions: list[bool], num_valid: int):
    num = len(matches)
    tokens = [0 if match else 1 for match in matches]
    judged = block(*[TORN] * (num + 1), draft=tokens, valid=min(num, num_valid))
    outcome = settle(Says(torch.tensor([opinions[:num]], dtype=torch.bool), superset), judged, {})

    reasons: list[int] = []
    for match, opinion in zip(matches[: min(num, num_valid)], opinions, strict=False):
        if not (opinion or (match and superset)):
            break
        reasons.append(Reason.LOOSE if not match else Reason.CARRIED if Reason.LOOSE in reasons else Reason.STRICT)
    assert outcome.length.item() == len(reasons)
    assert outcome.reasons[0, : len(reasons)].tolist() == reasons
    assert outcome.own_ids.item() == 0


def test_strict_loose_carried_and_own():
    judged = block(TORN, SURE[2], TORN, SURE[3], SURE[1], SURE[0], draft=[0, 2, 1, 3, 0])
    outcome = accepted(make_rule("prob", r=0.2), judged)
    assert outcome.length.tolist() == [4] and outcome.own_ids.tolist() == [1]
    assert outcome.reasons[0, :4].tolist() == [Reason.STRICT, Reason.STRICT, Reason.LOOSE, Reason.CARRIED]


@pytest.mark.parametrize("draft, own", [([1, 1], 2), ([2, 1], 3), ([2, 3], 0), ([], 2)])
def test_the_own_token_is_the_argmax_behind_the_prefix(draft: list[int], own: int):
    rows = [SURE[2], SURE[3], SURE[0]]
    assert accepted(make_rule("exact"), block(*rows[: len(draft) + 1], draft=draft)).own_ids.item() == own


def test_a_refused_token_is_replaced_from_the_residual():
    """p = (1/4, 1/2, 1/4), q = (1/2, 1/4, 1/4): only 1 lies above q."""
    p = torch.tensor([0.25, 0.5, 0.25]).log().tolist()
    for uniform in (0.001, 0.5, 0.999):
        judged = block(p, p, draft=[0], q=[[0.5, 0.25, 0.25]], uniforms=[0.9, uniform], greedy=False)
        outcome = accepted(make_rule("exact"), judged)
        assert outcome.length.tolist() == [0] and outcome.own_ids.tolist() == [1]


def test_a_refused_certain_token_is_never_drawn_again():
    p = FIFTHS
    drawn = {
        accepted(make_rule("exact"), block(p, p, draft=[0], uniforms=[0.9, u / 50 + 0.01], greedy=False)).own_ids.item()
        for u in range(50)
    }
    assert drawn == {1, 2}


def test_behind_a_whole_draft_the_bonus_comes_from_p():
    """Also behind a draft that is shorter than the block."""
    p = FIFTHS
    for valid in (0, 1, 2):
        judged = block(p, p, p, draft=[0, 0], valid=valid, uniforms=[0.01, 0.01, 0.25], greedy=False)
        outcome = accepted(make_rule("exact"), judged)
        assert outcome.length.tolist() == [valid] and outcome.own_ids.tolist() == [0]


def test_an_empty_residual_falls_back_to_p():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    judged = block([0.0] * 3, [0.0] * 3, draft=[0], q=p.tolist(), greedy=False)
    assert torch.equal(residual(judged, p, torch.tensor([0])), p)
    assert residual(judged, torch.tensor([[0.4, 0.4, 0.2]]), torch.tensor([0])).tolist() == [[0, pytest.approx(0.1), 0]]


@pytest.mark.parametrize("rule_id, precision", [("exact", torch.float32), ("block", torch.float64)])
@pytest.mark.parametrize("draw, expected", [(0.4, 0), (0.6, 1), (0.9, 2)])
def test_without_a_residual_it_is_drawn_from_p_in_that_row_alone(
    rule_id: str, precision: torch.dtype, draw: float, expected: int
):
    """Both rows drafted token 0; the first row's draft knew p, the second one's was sure of 0."""
    judged = Block(
        torch.zeros(2, 1, dtype=torch.long),
        torch.ones(2, 1, dtype=torch.bool),
        torch.tensor([FIFTHS, FIFTHS]).expand(2, 2, 3),
        uniforms=torch.tensor([[0.99, draw], [0.99, 0.5]], dtype=torch.float64),
        greedy=False,
    )
    p_1V = judged.logprobs[0, :1].to(precision).exp()  # rounded as the rule rounds it
    judged = judged.having(q=torch.stack([p_1V, torch.tensor([[1.0, 0.0, 0.0]]).to(precision)]))
    assert make_rule(rule_id).own(judged, torch.tensor([0, 0])).tolist() == [expected, 1]


@pytest.mark.parametrize(
    "weights, uniform, expected",
    [
        ([0.0, 1.0], 0.0, 1),  # a token without mass is not drawn by the smallest number
        ([0.5, 0.0, 0.5], 0.5, 2),
        ([0.5, 0.5], 0.49, 0),
        ([0.5, 0.5], 1.0, 1),  # nor anything behind the last one
        ([3.0, 1.0], 0.74, 0),
        ([3.0, 1.0], 0.76, 1),
        ([0.0, 0.2, 0.0, 0.8, 0.0], 1e-12, 1),
        ([0.0, 0.2, 0.0, 0.8, 0.0], 0.19, 1),
        ([0.0, 0.2, 0.0, 0.8, 0.0], 0.21, 3),
        ([0.0, 0.2, 0.0, 0.8, 0.0], 1 - 1e-12, 3),
    ],
)
def test_a_draw_inverts_the_distribution(weights: list[float], uniform: float, expected: int):
    assert draw(torch.tensor([weights]), torch.tensor([uniform], dtype=torch.float64)).tolist() == [expected]


def test_the_first_token_of_an_answer_is_the_targets_own_and_later_ones_are_the_rules():
    """The rule writes the argmax of its mixture behind a refusal: token 1; the target alone would write token 0."""
    refused, kept = [math.log(0.5), math.log(0.4), math.log(0.1)], [9.0, 0.0, 0.0]
    rows = torch.tensor([[refused, kept], [refused, kept], [kept, refused], [kept, refused]])
    judged = Block(
        torch.tensor([[2, 0], [2, 0], [0, 2], [0, 2]]),
        torch.ones(4, 2, dtype=torch.bool),
        torch.cat([rows, rows[:, :1]], dim=1),
        q=torch.tensor([0.1, 0.8, 0.1]).expand(4, 2, 3),
        begins=torch.tensor([True, False, True, False]),
    )
    rule = make_rule("ensemble", w=0.5, superset=False, replacement="argmax_nu")
    found = settle(rule, judged, {})
    assert found.length.tolist() == [0, 0, 1, 1]
    assert found.own_ids.tolist() == [0, 1, 1, 1]


ROWS = torch.tensor([[SURE[0], SURE[1], SURE[2]], [SURE[3], SURE[2], SURE[1]]])
DRAFT, WHOLE = torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.bool)


def test_greedy_it_is_the_best_token_behind_the_accepted_prefix():
    judged = Block(DRAFT, WHOLE, ROWS)
    assert target_draw(judged, torch.tensor([0, 2])).tolist() == [0, 1]
    assert target_draw(judged, torch.tensor([1, 0])).tolist() == [1, 3]


def test_sampled_it_is_drawn_from_the_row_behind_the_prefix_with_the_last_number():
    """Half of the mass lies on each of two tokens; the last number of a row chooses."""
    even = torch.full((2, 3, 4), -torch.inf)
    even[:, :, :2] = 0.0
    even[1, 2] = torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0])
    uniforms = torch.tensor([[0.9, 0.9, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    judged = Block(DRAFT, WHOLE, even, uniforms=uniforms, greedy=False)
    assert target_draw(judged, torch.tensor([0, 2])).tolist() == [0, 3]
    assert target_draw(judged, torch.tensor([2, 0])).tolist() == [0, 1]


def test_draw_needs_no_normalised_weights():
    uniforms = torch.linspace(0.005, 0.995, 100)
    drawn = draw(torch.tensor([2.0, 6.0]).expand(100, 2), uniforms)
    assert drawn.float().mean().item() == pytest.approx(0.75)


def test_sampling_orders_temperature_top_k_top_p():
    z = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    assert Sampling().logits(z) is z
    assert torch.equal(Sampling(2.0).logits(z), z / 2)
    assert Sampling(1.0, top_k=2).logits(z).isfinite().tolist() == [True, True, False, False, False]
    assert Sampling(1.0, top_k=9).logits(z).isfinite().all()
    # probabilities 0.64, 0.23, 0.09, ...: the second crosses 0.7
    assert Sampling(1.0, top_p=0.7).logits(z).isfinite().tolist() == [True, True, False, False, False]
    assert Sampling(1.0, top_p=0.6).logits(z).isfinite().tolist() == [True, False, False, False, False]
    # at temperature 4 the first three hold 0.73 and at top-k 3 the first two hold 0.72
    assert Sampling(4.0, top_p=0.7).logits(z).isfinite().sum() == 3
    assert Sampling(4.0, top_k=3, top_p=0.7).logits(z).isfinite().sum() == 2
    assert Sampling(1.0, top_p=1e-9).logits(z).isfinite().sum() == 1


def test_sampling_is_that_of_transformers():
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    z = 3 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    theirs = z
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(12), TopPLogitsWarper(0.8)):
        theirs = warper(None, theirs)
    assert torch.equal(Sampling(0.7, top_k=12, top_p=0.8).logits(z), theirs)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_sampling_is_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="Sampling"):
        Sampling(**{"temperature": 1.0, **wrong})


def test_a_sampled_block_needs_numbers():
    with pytest.raises(ValueError, match="uniforms"):
        _ = block(SPLIT, SPLIT, draft=[0], greedy=False).strict


def test_what_is_impossible_for_both_is_refused():
    z = [0.0, 0.0, -torch.inf]
    assert not block(z, z, draft=[2], q=[[0.5, 0.5, 0.0]], uniforms=[0.1, 0.1], greedy=False).strict.any()


def test_block_statistics():
    judged = block([0.0, 0.0, -torch.inf, -torch.inf], SPLIT, draft=[1])
    assert judged.entropy[0, 0].item() == pytest.approx(0.6931, abs=1e-4)
    assert judged.entropy3[0, 0].item() == pytest.approx(0.6931, abs=1e-4)
    uniform = block([0.0] * 4, SPLIT, draft=[1])
    assert uniform.entropy[0, 0].item() == pytest.approx(1.3863, abs=1e-4)
    assert uniform.entropy3[0, 0].item() == pytest.approx(0.75 * 1.3863, abs=1e-4)
    assert block(SPLIT, SPLIT, draft=[2]).draft_rank.tolist() == [[2]]
    assert block(SURE[1], SPLIT, draft=[1]).top_logprob[0, 0] > -0.01
