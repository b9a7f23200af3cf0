"""Muon (Jordan et al., 2024): momentum whose matrix updates are made orthogonal by Newton-Schulz iterations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Quintic iteration that drives all singular values into about [0.7, 1.2] in five steps."""


def orthogonalise(g_BMN: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of each matrix by about 1; needs M <= N. Shapes [B, M, N] -> [B, M, N]."""
    a, b, c = COEFFICIENTS
    x: Tensor = g_BMN / (g_BMN.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Muon for matrices only, by hand because it is twice as fast as torch.optim.Muon on small matrices.

    torch.optim.Muon treats one matrix at a time and always in bfloat16, which is slow on processors without matrix
    tiles. Here matrices of equal shape share one batched product in a chosen precision.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what the closure computed, if there is one."""
        loss = closure() if closure is not None else None
        self._update()
        return loss

    @torch.no_grad()
    def _update(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    update = self._momentum(param, group["momentum"])
                    wide = update if param.shape[0] <= param.shape[1] else update.mT
                    by_shape[tuple(wide.shape)].append((param, wide))
            for pairs in by_shape.values():
                updates = orthogonalise(torch.stack([wide for _, wide in pairs]).to(self.dtype))
                for (param, wide), update in zip(pairs, updates, strict=True):
                    rows, columns = param.shape
                    update = update if wide.shape == param.shape else update.mT
                    param.add_(update.to(param.dtype), alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)

    def _momentum(self, param: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum of the gradient."""
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        assert param.grad is not None
        average = state["momentum"].lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(average, momentum)
