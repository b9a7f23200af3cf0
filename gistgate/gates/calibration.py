"""Maps from a head's logit to a calibrated probability, fitted on problems that no head has seen.

Both maps are monotone, so they change no ranking; they make an output of 0.95 mean 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gistgate.errors import UserError
from gistgate.registry import Registry


class Platt(nn.Module):
    """sigmoid(a * logit + b), with a >= 0 (Platt 1999)."""

    a: Tensor
    b: Tensor

    def __init__(self, a: float = 1.0, b: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor(float(a)))
        self.register_buffer("b", torch.tensor(float(b)))

    def forward(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(self.a * logits + self.b)


class Isotonic(nn.Module):
    """A non-decreasing polyline through (knots, values), constant outside (Zadrozny and Elkan 2002)."""

    knots: Tensor
    values: Tensor

    def __init__(self, knots: Sequence[float] = (0.0,), values: Sequence[float] = (0.5,)) -> None:
        super().__init__()
        self.register_buffer("knots", torch.tensor(knots, dtype=torch.float32))
        self.register_buffer("values", torch.tensor(values, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        last = self.knots.numel() - 1
        right = torch.searchsorted(self.knots, logits.contiguous()).clamp(max=last)
        left = (right - 1).clamp(min=0)
        x0, x1, y0, y1 = self.knots[left], self.knots[right], self.values[left], self.values[right]
        share = ((logits - x0) / (x1 - x0).clamp_min(torch.finfo(torch.float32).tiny)).clamp(0, 1)
        return y0 + share * (y1 - y0)


MAPS: Registry[type[nn.Module]] = Registry("probability map", {"platt": Platt, "isotonic": Isotonic})
"""Probability maps by id."""


MOST_KNOTS = 1 << 16
"""Knots of the largest map that is built: far more than calibration makes."""


def build_map(kind: type[nn.Module], num_knots: int) -> nn.Module:
    """An empty map of that type, to be filled from a state dictionary; `num_knots` is 0 for maps without knots.

    Raises:
        UserError: the number of knots is out of range.
    """
    if not 0 <= num_knots <= MOST_KNOTS:
        raise UserError(
            f"A probability map has {num_knots} knots, but 0 to {MOST_KNOTS} are possible. Restore its file."
        )
    if kind is Isotonic:
        return Isotonic([0.0] * max(num_knots, 1), [0.5] * max(num_knots, 1))
    return kind()
