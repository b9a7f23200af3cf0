"""The target's own token for rules that replace the strict test, for which the residual distribution is not right."""

from __future__ import annotations

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.rules.base import draw


def target_draw(block: Block, length_B: Tensor) -> Tensor:
    """The token that p itself chooses behind the accepted prefix [B]: its argmax (greedy), else a draw from p."""
    if block.greedy:
        return block.top_ids.gather(-1, length_B[:, None]).squeeze(-1)
    assert block.uniforms is not None
    rows_B = torch.arange(len(length_B), device=length_B.device)
    return draw(block.logprobs[rows_B, length_B].exp(), block.uniforms[:, -1])
