"""What follows from the parents of a tree's nodes: depths, ancestors and paths.

Axis letters: B rows, N nodes, P paths, D depth of the deepest path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def lineage(parents: Tensor) -> Tensor:
    """Whether node m is node n itself or one of its ancestors [B, N, N], for `parents [B, N]`."""
    batch, num = parents.shape
    steps = torch.eye(num, device=parents.device).expand(batch, -1, -1).clone()
    if num:
        steps.scatter_add_(-1, parents.clamp_min(0)[..., None], (parents >= 0).float()[..., None])
    reached = 1
    while reached < num:  # every product doubles how many generations are covered
        steps = (steps @ steps).clamp_max(1)
        reached *= 2
    return steps > 0


def depths(parents: Tensor) -> Tensor:
    """Nodes from the text to each node, itself included [B, N]."""
    return lineage(parents).sum(-1)


def paths_of(parents: Tensor, valid: Tensor) -> Tensor:
    """The nodes from the text to each leaf among the valid ones [B, P, D], filled up with -1; P and D at least 1."""
    rows = [leaf_paths(row, known) for row, known in zip(parents.tolist(), valid.tolist(), strict=True)]
    return stacked(rows, parents.device)


def leaf_paths(parents: Sequence[int], valid: Sequence[bool]) -> list[list[int]]:
    """The paths to the leaves of one tree, in the order of the leaves."""
    real = [node for node, known in enumerate(valid) if known]
    inner = {parents[node] for node in real}
    return [path_to(node, parents) for node in real if node not in inner]


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the text down to `node`; none for -1."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def stacked(rows: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor:
    """Paths of unequal number and length as [B, P, D], filled up with -1; P and D at least 1."""
    num = max([1, *map(len, rows)])
    deepest = max([1, *(len(path) for row in rows for path in row)])
    out = torch.full((len(rows), num, deepest), -1)
    for place, row in enumerate(rows):
        for number, path in enumerate(row):
            out[place, number, : len(path)] = torch.tensor(path, dtype=torch.long)
    return out.to(device)
