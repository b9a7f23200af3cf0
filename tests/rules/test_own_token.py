"""The target's own token behind a refusal, where draft and target agree so closely that nothing is left of p - q."""

import math

import pytest
import torch

from gistgate.block import Block
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
