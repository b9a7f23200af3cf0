"""How an opinion becomes a prefix: longest run, reasons, and the target's own token behind it, and its draw."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

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


EXACT = make_rule("exact")
TENTHS = torch.tensor([0.5, 0.3, 0.2]).log().tolist()
QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log().tolist()
NUMBERS = [u / 50 + 0.01 for u in range(50)]
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
    assert outcome.length.item() == len(reasons) and outcome.own_ids.item() == 0
    assert outcome.reasons[0, : len(reasons)].tolist() == reasons


def test_strict_loose_carried_and_own():
    judged = block(TORN, SURE[2], TORN, SURE[3], SURE[1], SURE[0], draft=[0, 2, 1, 3, 0])
    outcome = accepted(make_rule("prob", r=0.2), judged)
    assert outcome.length.tolist() == [4] and outcome.own_ids.tolist() == [1]
    assert outcome.reasons[0, :4].tolist() == [Reason.STRICT, Reason.STRICT, Reason.LOOSE, Reason.CARRIED]


@pytest.mark.parametrize("draft, own", [([1, 1], 2), ([2, 1], 3), ([2, 3], 0), ([], 2)])
def test_the_own_token_is_the_argmax_behind_the_prefix(draft: list[int], own: int):
    rows = [SURE[2], SURE[3], SURE[0]]
    assert accepted(EXACT, block(*rows[: len(draft) + 1], draft=draft)).own_ids.item() == own


@pytest.mark.parametrize(
    "z, q, numbers, wanted",
    [
        (QUARTERS, [[0.5, 0.25, 0.25]], (0.001, 0.5, 0.999), {1}),  # only 1 lies above q
        (TENTHS, None, NUMBERS, {1, 2}),  # a certain token that was refused is never drawn again
    ],
)
def test_a_refused_token_is_replaced_from_the_residual(z: Any, q: Any, numbers: Any, wanted: set[int]):
    judged = [block(z, z, draft=[0], q=q, uniforms=[0.9, number], greedy=False) for number in numbers]
    outcomes = [accepted(EXACT, one) for one in judged]
    assert {one.own_ids.item() for one in outcomes} == wanted and not any(one.length.item() for one in outcomes)


@pytest.mark.parametrize("valid", [0, 1, 2])
def test_behind_a_whole_draft_the_bonus_comes_from_p_also_where_it_is_shorter_than_the_block(valid: int):
    p = TENTHS
    judged = block(p, p, p, draft=[0, 0], valid=valid, uniforms=[0.01, 0.01, 0.25], greedy=False)
    outcome = accepted(EXACT, judged)
    assert outcome.length.tolist() == [valid] and outcome.own_ids.tolist() == [0]


def test_an_empty_residual_falls_back_to_p():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    judged = block([0.0] * 3, [0.0] * 3, draft=[0], q=p.tolist(), greedy=False)
    assert torch.equal(residual(judged, p, torch.tensor([0])), p)
    assert residual(judged, torch.tensor([[0.4, 0.4, 0.2]]), torch.tensor([0])).tolist() == [[0, pytest.approx(0.1), 0]]


@pytest.mark.parametrize("rule_id, kind", [("exact", torch.float32), ("block", torch.float64)])
@pytest.mark.parametrize("number, expected", [(0.4, 0), (0.6, 1), (0.9, 2)])
def test_without_a_residual_it_is_drawn_from_p_in_that_row_alone(rule_id: str, kind: Any, number: float, expected: int):
    """Both rows drafted token 0; the first row's draft knew p, the second one's was sure of 0."""
    uniforms = torch.tensor([[0.99, number], [0.99, 0.5]], dtype=torch.float64)
    ids = torch.zeros(2, 1, dtype=torch.long)
    judged = Block(ids, ids == 0, torch.tensor([TENTHS] * 2).expand(2, 2, 3), uniforms=uniforms, greedy=False)
    p_1V = judged.logprobs[0, :1].to(kind).exp()  # rounded as the rule rounds it
    judged = judged.having(q=torch.stack([p_1V, torch.tensor([[1.0, 0.0, 0.0]]).to(kind)]))
    assert make_rule(rule_id).own(judged, torch.tensor([0, 0])).tolist() == [expected, 1]


@pytest.mark.parametrize(
    "weights, uniform, expected",
    [
        ([0.0, 1.0], 0.0, 1),  # a token without mass is not drawn by the smallest number
        ([0.5, 0.0, 0.5], 0.5, 2),
        ([0.5, 0.5], 0.49, 0),
        ([0.5, 0.5], 1.0, 1),  # nor anything behind the last one
        ([3.0, 1.0], 0.74, 0),  # weights need not be normalised
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
    refused, kept = torch.tensor([0.5, 0.4, 0.1]).log(), torch.tensor([9.0, 0.0, 0.0])
    before, behind = torch.stack([refused, kept, refused]), torch.stack([kept, refused, kept])
    ids = torch.tensor([[2, 0], [2, 0], [0, 2], [0, 2]])
    q, begins = torch.tensor([0.1, 0.8, 0.1]).expand(4, 2, 3), torch.tensor([True, False, True, False])
    judged = Block(ids, ids >= 0, torch.stack([before, before, behind, behind]), q=q, begins=begins)
    found = settle(make_rule("ensemble", w=0.5, superset=False, replacement="argmax_nu"), judged, {})
    assert found.length.tolist() == [0, 0, 1, 1] and found.own_ids.tolist() == [0, 1, 1, 1]


def test_the_token_of_rules_that_replace_the_strict_test_is_the_targets_choice_without_a_residual():
    """Greedy the best behind the prefix; sampled it is drawn from that row with the last number, half of the mass
    lying on each of two tokens."""
    ids = torch.zeros(2, 2, dtype=torch.long)
    judged = Block(ids, ids == 0, torch.tensor([[SURE[0], SURE[1], SURE[2]], [SURE[3], SURE[2], SURE[1]]]))
    assert target_draw(judged, torch.tensor([0, 2])).tolist() == [0, 1]
    assert target_draw(judged, torch.tensor([1, 0])).tolist() == [1, 3]
    even = torch.full((2, 3, 4), -torch.inf)
    even[:, :, :2] = 0.0
    even[1, 2] = torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0])
    uniforms = torch.tensor([[0.9, 0.9, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    judged = Block(ids, ids == 0, even, uniforms=uniforms, greedy=False)
    assert target_draw(judged, torch.tensor([0, 2])).tolist() == [0, 3]
    assert target_draw(judged, torch.tensor([2, 0])).tolist() == [0, 1]


@pytest.mark.parametrize(
    "settings, num",
    [
        ((1.0, 2), 2),
        ((1.0, 9), 5),
        ((1.0, 0, 0.7), 2),  # probabilities 0.64, 0.23, 0.09, ...: the second crosses 0.7
        ((1.0, 0, 0.6), 1),
        ((4.0, 0, 0.7), 3),  # at temperature 4 the first three hold 0.73 and at top-k 3 the first two hold 0.72
        ((4.0, 3, 0.7), 2),
        ((1.0, 0, 1e-9), 1),
    ],
)
def test_sampling_orders_temperature_top_k_top_p(settings: tuple[Any, ...], num: int):
    z = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])
    assert Sampling(*settings).logits(z).isfinite().tolist() == [place < num for place in range(5)]
    assert Sampling().logits(z) is z and torch.equal(Sampling(2.0).logits(z), z / 2)


def test_sampling_is_that_of_transformers():
    theirs = z = 3 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(12), TopPLogitsWarper(0.8)):
        theirs = warper(None, theirs)
    assert torch.equal(Sampling(0.7, top_k=12, top_p=0.8).logits(z), theirs)


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_sampling_is_refused(wrong: dict[str, Any]):
    with pytest.raises(UserError, match="Impossible sampling"):
        Sampling(**{"temperature": 1.0, **wrong})


def test_a_sampled_block_needs_numbers_and_what_is_impossible_for_both_is_refused():
    with pytest.raises(ValueError, match="uniforms"):
        _ = block(SPLIT, SPLIT, draft=[0], greedy=False).strict
    z = [0.0, 0.0, -torch.inf]
    assert not block(z, z, draft=[2], q=[[0.5, 0.5, 0.0]], uniforms=[0.1, 0.1], greedy=False).strict.any()


def test_block_statistics():
    for row, whole, top3 in (([0.0, 0.0, -torch.inf, -torch.inf], 0.6931, 0.6931), ([0.0] * 4, 1.3863, 0.75 * 1.3863)):
        judged = block(row, SPLIT, draft=[1])
        assert judged.entropy[0, 0].item() == pytest.approx(whole, abs=1e-4)
        assert judged.entropy3[0, 0].item() == pytest.approx(top3, abs=1e-4)
    assert block(SPLIT, SPLIT, draft=[2]).draft_rank.tolist() == [[2]]
    assert block(SURE[1], SPLIT, draft=[1]).top_logprob[0, 0] > -0.01
