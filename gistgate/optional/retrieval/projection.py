"""From hidden states to keys: standardise, project on principal components, scale to unit length.

The pipeline fits the three affine steps; here they are one matrix, so that a query costs one product.

Axis letters: D width of a state, P width of a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.errors import UserError


@dataclass(frozen=True)
class Projection:
    """key = unit(h W + b)."""

    weight: Tensor
    """W [D, P]: components divided by the standard deviation of each dimension."""
    bias: Tensor
    """b [P]: what the means come to."""

    @classmethod
    def compose(cls, mean_D: Tensor, deviation_D: Tensor, components_PD: Tensor, centre_D: Tensor) -> Projection:
        """One matrix for ((h - mean) / deviation - centre) components^T; a constant dimension counts for nothing."""
        inverse_D = torch.where(deviation_D > 0, 1 / deviation_D.clamp_min(1e-12), 0.0)
        weight_DP = (components_PD * inverse_D).T.contiguous()
        return cls(weight_DP.float(), (-mean_D @ weight_DP - centre_D @ components_PD.T).float())

    @property
    def size(self) -> int:
        """P."""
        return self.weight.shape[1]

    def __call__(self, states: Tensor) -> Tensor:
        """Keys [..., P], float32, of states [..., D].

        Raises:
            UserError: states of another width.
        """
        if states.shape[-1] != self.weight.shape[0]:
            raise UserError(
                f"The datastore's keys come from states of width {self.weight.shape[0]}, these have "
                f"{states.shape[-1]}. Build the datastore with this target."
            )
        return F.normalize(states.float() @ self.weight + self.bias, dim=-1)

    def to(self, device: torch.device | str) -> Projection:
        """The same projection on a device."""
        return Projection(self.weight.to(device), self.bias.to(device))
