"""Gate heads: a handful of tensors that turn features into one logit of "the meaning is kept".

Axis letters: N examples (any leading shape), F features, H hidden units.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from gistgate.errors import UserError
from gistgate.registry import Registry


class Head(Protocol):
    """What every head has beside being a module: features `[..., F]` in, logits `[...]` out."""

    first: nn.Linear
    """The layer that reads the features; standardisation is folded into it."""


class Linear(nn.Module):
    """w . x + b: a logistic regression, whoever trained it."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.first(x).squeeze(-1)
        return logits


class Mlp(nn.Module):
    """One hidden layer, so that what was read (h_tok) can be weighed against what was expected (h_pred)."""

    def __init__(self, input_size: int, hidden_size: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(x)))).squeeze(-1)
        return logits


HEADS: Registry[type[nn.Module]] = Registry("gate head", {"linear": Linear, "mlp": Mlp})
"""Id -> class of the head. A new head is one class and one line here."""


def fold_standardisation(first: nn.Linear, mean_F: Tensor, scale_F: Tensor) -> None:
    """Let a layer trained on (x - mean) / scale read x itself: weight w / scale, bias b - sum(w * mean / scale)."""
    if mean_F.shape != (first.in_features,) or scale_F.shape != mean_F.shape:
        raise ValueError(f"Means {tuple(mean_F.shape)} and scales {tuple(scale_F.shape)} do not fit {first}.")
    with torch.no_grad():
        weight = first.weight.double() / scale_F.double()
        bias = first.bias.double() - weight @ mean_F.double()
        first.weight.copy_(weight)
        first.bias.copy_(bias)


def build_head(kind: type[nn.Module], sizes: dict[str, float]) -> nn.Module:
    """A head of that type with these sizes.

    Raises:
        UserError: the type has no such size.
    """
    try:
        return kind(**sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"A {kind.__name__.lower()} head cannot have the sizes {sizes} ({error}).") from error
