"""How an opinion becomes a prefix: longest run, reasons, and the target's own token behind it, and
its draw.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gistgate.core.block import Block, Reason, Sampling, draw
from gistgate.core.rule import Rule, settle
from gistgate.rules import make_rule
from tests.blocks import SPLIT, SURE, TORN, accepted, block


@dataclass(frozen=True)
class Says(Rule):
    """A rule with a fixed opinion."""

    id = "says"

    opinion: Tensor
    superset: bool = True
    needs: frozenset[str] = frozenset()

    def accept(self, block: Block) -> Tensor:
        return self.opinion


EXACT = make_rule("exact")
TENTHS = torch.tensor([0.5, 0.3, 0.2]).log().tolist()
QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log().tolist()
NUMBERS = [u / 50 + 0.01 for u in range(50)]
flags = st.lists(st.booleans(), min_size=0, max_size=9)


@settings(max_examples=200, deadline=None)
@given(
    matches=flags,
    opinions=st.lists(st.booleans(), min_size=9, max_size=9),
    num_valid=st.integers(0, 9),
)
@pytest.mark.parametrize("superset", [True, False])
def test_the_longest_accepted_prefix_stays(
    superset: bool, matches: list[bool], opinions: list[bool], num_valid: int
):
    num = len(matches)
    tokens = [0 if match else 1 for match in matches]
    judged = block(*[TORN] * (num + 1), draft=tokens, valid=min(num, num_valid))
    outcome = settle(Says(torch.tensor([opinions[:num]], dtype=torch.bool), superset), judged)
    reasons: list[int] = []
    for match, opinion in zip(matches[: min(num, num_valid)], opinions, strict=False):
        if not (opinion or (match and superset)):
            break
        reasons.append(
            Reason.LOOSE
            if not match
            else Reason.CARRIED
            if Reason.LOOSE in reasons
            else Reason.STRICT
        )
    assert outcome.length.item() == len(reasons) and outcome.own_ids.item() == 0
    assert outcome.reasons[0, : len(reasons)].tolist() == reasons


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
def test_a_refused_token_is_replaced_from_the_residual(
    z: Any, q: Any, numbers: Any, wanted: set[int]
):
    judged = [
        block(z, z, draft=[0], q=q, uniforms=[0.9, number], greedy=False) for number in numbers
    ]
    outcomes = [accepted(EXACT, one) for one in judged]
    assert {one.own_ids.item() for one in outcomes} == wanted and not any(
        one.length.item() for one in outcomes
    )


@pytest.mark.parametrize("valid", [0, 1, 2])
def test_behind_a_whole_draft_the_bonus_comes_from_p_also_where_it_is_shorter_than_the_block(
    valid: int,
):
    p = TENTHS
    judged = block(p, p, p, draft=[0, 0], valid=valid, uniforms=[0.01, 0.01, 0.25], greedy=False)
    outcome = accepted(EXACT, judged)
    assert outcome.length.tolist() == [valid] and outcome.own_ids.tolist() == [0]


@pytest.mark.parametrize("rule_id, kind", [("exact", torch.float32), ("block", torch.float64)])
@pytest.mark.parametrize("number, expected", [(0.4, 0), (0.6, 1), (0.9, 2)])
def test_without_a_residual_it_is_drawn_from_p_in_that_row_alone(
    rule_id: str, kind: Any, number: float, expected: int
):
    """Both rows drafted token 0; the first row's draft knew p, the second one's was sure of 0."""
    uniforms = torch.tensor([[0.99, number], [0.99, 0.5]], dtype=torch.float64)
    ids = torch.zeros(2, 1, dtype=torch.long)
    judged = Block(
        ids, ids == 0, torch.tensor([TENTHS] * 2).expand(2, 2, 3), uniforms=uniforms, greedy=False
    )
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
    assert draw(torch.tensor([weights]), torch.tensor([uniform], dtype=torch.float64)).tolist() == [
        expected
    ]


def test_the_first_token_of_an_answer_is_the_targets_own_and_later_ones_are_the_rules():
    """The rule writes the argmax of its mixture behind a refusal: token 1; the target alone would
    write token 0.
    """
    refused, kept = torch.tensor([0.5, 0.4, 0.1]).log(), torch.tensor([9.0, 0.0, 0.0])
    before, behind = torch.stack([refused, kept, refused]), torch.stack([kept, refused, kept])
    ids = torch.tensor([[2, 0], [2, 0], [0, 2], [0, 2]])
    q, begins = (
        torch.tensor([0.1, 0.8, 0.1]).expand(4, 2, 3),
        torch.tensor([True, False, True, False]),
    )
    judged = Block(ids, ids >= 0, torch.stack([before, before, behind, behind]), q=q, begins=begins)
    found = settle(make_rule("ensemble", w=0.5, superset=False, replacement="argmax_nu"), judged)
    assert found.length.tolist() == [0, 0, 1, 1] and found.own_ids.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "temperature, top_k, top_p", [(0.7, 12, 0.8), (4.0, 3, 0.7), (1.0, 99, 1e-9)]
)
def test_sampling_is_that_of_transformers(temperature: float, top_k: int, top_p: float):
    theirs = z = 3 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    for warper in (
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
    ):
        theirs = warper(None, theirs)
    assert torch.equal(Sampling(temperature, top_k=top_k, top_p=top_p).logits(z), theirs)
    assert Sampling().logits(z) is z


def test_a_sampled_block_needs_numbers_and_what_is_impossible_for_both_is_refused():
    with pytest.raises(AssertionError):
        _ = block(SPLIT, SPLIT, draft=[0], greedy=False).strict
    z = [0.0, 0.0, -torch.inf]
    assert not block(
        z, z, draft=[2], q=[[0.5, 0.5, 0.0]], uniforms=[0.1, 0.1], greedy=False
    ).strict.any()
