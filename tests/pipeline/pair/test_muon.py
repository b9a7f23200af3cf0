"""Muon: its updates are orthogonal, tall and wide matrices alike, and it lowers a loss."""

from __future__ import annotations

import torch

from pipeline.pair.training import Muon, orthogonalise


def test_singular_values_are_driven_near_one():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 16, 40)))
    assert values.min() > 0.5 and values.max() < 1.3


def test_equal_shapes_and_transposed_ones_are_updated_as_if_alone():
    torch.manual_seed(0)
    first = [torch.randn(8, 4), torch.randn(4, 8), torch.randn(8, 4)]
    grads = [torch.randn_like(matrix) for matrix in first]

    def step(indices: list[int]) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(first[i].clone()) for i in indices]
        for param, i in zip(params, indices, strict=True):
            param.grad = grads[i].clone()
        Muon(params, lr=0.1).step()
        return [param.detach() for param in params]

    together = step([0, 1, 2])
    for i in range(3):
        assert torch.allclose(together[i], step([i])[0], atol=1e-6)
        assert not torch.allclose(together[i], first[i])


def test_it_lowers_a_loss():
    torch.manual_seed(0)
    weight, inputs = torch.nn.Parameter(torch.zeros(6, 6)), torch.randn(64, 6)
    wanted = inputs @ torch.linalg.qr(torch.randn(6, 6))[0]
    optimizer, losses = Muon([weight], lr=0.05), []
    for _ in range(60):
        loss = (inputs @ weight - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
