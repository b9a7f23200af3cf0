"""A probe: the states that predict a segment in, the probability that its model finds the meaning out.

Axis letters: N segments, K tokens, D width, H hidden units.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gistgate.errors import UserError

POOLINGS = ("mean", "last", "attention")
"""How the states of a segment become one vector."""


class Probe(nn.Module):
    """Pooling and an MLP with one hidden layer; the output is a logit."""

    def __init__(self, width: int, hidden_size: int = 64, pooling: str = "mean", dropout: float = 0.1) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise UserError(f"There is no pooling '{pooling}'. Known: {', '.join(POOLINGS)}.")
        self.width, self.hidden_size, self.pooling = width, hidden_size, pooling
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, 1, bias=False) if pooling == "attention" else None
        self.first = nn.Linear(width, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, states: Tensor, valid: Tensor) -> Tensor:
        """Logits [N] for `states [N, K, D]` of which `valid [N, K]`, a prefix of True, counts; 0 rows give 0."""
        if states.shape[-1] != self.width:
            raise UserError(
                f"The probe reads states of width {self.width}, but these have {states.shape[-1]}. Use the model it "
                "was trained for."
            )
        pooled = self.norm(self.pool(states.float(), valid))
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(pooled)))).squeeze(-1)
        return logits

    def pool(self, states: Tensor, valid: Tensor) -> Tensor:
        """One vector per segment [N, D]."""
        lengths = valid.sum(-1).clamp_min(1)
        if self.pooling == "last":
            at = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1])
            return states.gather(1, at).squeeze(1)
        if self.query is None:
            return (states * valid[..., None]).sum(1) / lengths[:, None]
        scores = self.query(states).squeeze(-1).masked_fill(~valid, torch.finfo(states.dtype).min)
        weights = scores.softmax(-1) * valid
        pooled: Tensor = (weights[..., None] * states).sum(1)
        return pooled
