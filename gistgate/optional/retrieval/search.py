"""Nearest keys by inner product: the interface, and the exact search that reads every key.

Axis letters: Q queries, N keys, P width of a key, k neighbours.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

CHUNK = 1 << 18
"""Keys that are compared at once: bounds the memory of the scores."""


class Index(Protocol):
    """Finds the stored keys that are nearest to a query."""

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The `k` nearest of all keys, fewer where there are fewer.

        Args:
            queries: unit vectors [Q, P], float32.
            k: neighbours.

        Returns:
            Cosines [Q, k'] and numbers of the keys [Q, k'], on the CPU, best first. An approximate index that finds
            fewer for some query fills up with the number -1.
        """
        ...


class ExactIndex:
    """Compares the query with every key, in chunks."""

    def __init__(self, keys: Tensor, device: torch.device | str = "cpu") -> None:
        """`keys [N, P]` in float16; a CPU multiplies float32, which takes a copy in memory."""
        half = torch.device(device).type != "cpu"
        self.keys = keys.to(device, torch.float16 if half else torch.float32)

    def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        queries = queries.to(self.keys)
        best: tuple[Tensor, Tensor] | None = None
        for start in range(0, len(self.keys), CHUNK):
            cosines_QN = queries @ self.keys[start : start + CHUNK].T
            values, places = cosines_QN.topk(min(k, cosines_QN.shape[1]), dim=-1)
            best = (values, places + start) if best is None else merge(best, (values, places + start), k)
        if best is None:
            return torch.zeros(len(queries), 0), torch.zeros(len(queries), 0, dtype=torch.long)
        return best[0].float().cpu(), best[1].cpu()


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """The `k` best of two lists of (cosines, numbers), each [Q, ...]."""
    cosines, numbers = torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1)
    values, places = cosines.topk(min(k, cosines.shape[1]), dim=-1)
    return values, numbers.gather(1, places)
