"""Heads and probability maps of gates: features in, calibrated probability that the meaning is kept
out.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gistgate.core.utils import Registry


class Linear(nn.Module):
    """w . x + b: a logistic regression, whoever trained it."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.first(x).squeeze(-1)
        return logits


class Mlp(nn.Module):
    """One hidden layer, so that what was read (h_tok) can be weighed against what was expected
    (h_pred).
    """

    def __init__(self, input_size: int, hidden_size: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(x)))).squeeze(-1)
        return logits


HEADS: Registry[type[nn.Module]] = Registry("gate head", {"linear": Linear, "mlp": Mlp})
"""Classes by id: features `[..., F]` in, logits `[...]` out. The layer `first` takes the
standardisation in.
"""


def fold_standardisation(first: nn.Linear, mean_F: Tensor, scale_F: Tensor) -> None:
    """Let a layer trained on (x - mean) / scale read x itself: weight w / scale, bias b - sum(w *
    mean / scale).
    """
    with torch.no_grad():
        weight = first.weight.double() / scale_F.double()
        bias = first.bias.double() - weight @ mean_F.double()
        first.weight.copy_(weight)
        first.bias.copy_(bias)


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
    """A non-decreasing polyline through (knots, values), constant outside (Zadrozny and Elkan
    2002).
    """

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
        x0 = self.knots[left]
        x1 = self.knots[right]
        y0 = self.values[left]
        y1 = self.values[right]
        share = ((logits - x0) / (x1 - x0).clamp_min(torch.finfo(torch.float32).tiny)).clamp(0, 1)
        return y0 + share * (y1 - y0)


MAPS: Registry[type[nn.Module]] = Registry(
    "probability map", {"platt": Platt, "isotonic": Isotonic}
)
