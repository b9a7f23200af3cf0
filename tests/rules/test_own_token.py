"""The target's own token behind a refusal: drawn from what is left of p - q, and its own where an answer begins."""

import math

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.rule import draw, settle
from gistgate.rules import make_rule

P = [math.log(0.5), math.log(0.3), math.log(0.2)]


@pytest.mark.parametrize("rule_id, precision", [("exact", torch.float32), ("block", torch.float64)])
@pytest.mark.parametrize("draw, expected", [(0.4, 0), (0.6, 1), (0.9, 2)])
def test_without_a_residual_it_is_drawn_from_p_in_that_row_alone(
    rule_id: str, precision: torch.dtype, draw: float, expected: int
):
    """Both rows drafted token 0; the first row's draft knew p, the second one's was sure of 0."""
    judged = Block(
        torch.zeros(2, 1, dtype=torch.long),
        torch.ones(2, 1, dtype=torch.bool),
        torch.tensor([P, P]).expand(2, 2, 3),
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
    ],
)
def test_a_draw_inverts_the_distribution(weights: list[float], uniform: float, expected: int):
    assert draw(torch.tensor([weights]), torch.tensor([uniform])).tolist() == [expected]


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
