"""The token of rules that replace the strict test: the target's own choice, without a residual."""

import torch

from gistgate.core.block import Block
from gistgate.core.rule import target_draw
from tests.blocks import SURE

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
