"""How often the target refused a draft token x in favour of its own t: a bounded table of pairs (x, t).

Axis letters: N pairs that were met, C pairs in the table.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gistgate.errors import UserError
from gistgate.files import load_tensors, save_tensors

STRIDE = 1 << 31
"""The key of a pair is x * STRIDE + t: one number, whatever the size of the vocabulary."""
CAPACITY = 1 << 16
"""Pairs that a table holds unless told otherwise: 1.5 MB."""


class PairCounts:
    """Sorted keys [C] with their counts, on the device that asks; beyond `capacity` the pairs met longest ago leave."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise UserError(f"A table of pair counts has capacity {capacity}, but it must hold 1 pair or more.")
        self.capacity = capacity
        self.keys = torch.empty(0, dtype=torch.long)
        self.counts = torch.empty(0, dtype=torch.long)
        self.seen = torch.empty(0, dtype=torch.long)
        """When each pair was met last, in calls of `add`."""
        self.clock = 0
        self.num_ids = 0
        """One more than the largest token id of a table that was read from a file."""

    def __len__(self) -> int:
        return self.keys.numel()

    def look_up(self, x: Tensor, t: Tensor) -> Tensor:
        """How often each pair was met, 0 for an unknown one: shape of `x` and `t`. No host synchronisation."""
        self.to(x.device)
        return self._count(pair_key(x, t))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Count pairs `x [N]`, `t [N]`; the same pair may stand there several times."""
        if not x.numel():
            return
        self.to(x.device)
        keys, counts = pair_key(x, t).unique(return_counts=True)
        self._insert(keys[self._count(keys) == 0])
        place = torch.searchsorted(self.keys, keys)
        # Out of place: a table filled while decoding (inference mode) can be filled on outside of it.
        self.counts = self.counts.index_add(0, place, counts)
        self.seen = self.seen.index_fill(0, place, self.clock)
        self.clock += 1
        self._forget()

    def save(self, path: str | Path) -> None:
        """Write the table as safetensors."""
        save_tensors(path, {"keys": self.keys, "counts": self.counts, "seen": self.seen})

    @classmethod
    def load(cls, path: str | Path) -> PairCounts:
        """Read a table, all of it; its capacity is the usual one, or its size where that is larger.

        Raises:
            UserError: the file is missing or damaged, or it is no such table.
        """
        tensors = load_tensors(path)
        if not is_table(tensors):
            raise UserError(
                f"{path} is no table of pair counts (keys in ascending order, their counts, when they were met last). "
                "Count again and write it with PairCounts.save."
            )
        table = cls(max(CAPACITY, tensors["keys"].numel()))
        table.keys, table.counts, table.seen = tensors["keys"], tensors["counts"], tensors["seen"]
        if len(table):
            table.clock = int(table.seen.max()) + 1
            table.num_ids = int(torch.maximum(table.keys // STRIDE, table.keys % STRIDE).max()) + 1
        return table

    def to(self, device: torch.device) -> None:
        """Move the table."""
        if self.keys.device != device:
            self.keys, self.counts, self.seen = self.keys.to(device), self.counts.to(device), self.seen.to(device)

    def _count(self, key: Tensor) -> Tensor:
        if not len(self):
            return torch.zeros_like(key)
        place = torch.searchsorted(self.keys, key).clamp_max(len(self) - 1)
        return torch.where(self.keys[place] == key, self.counts[place], 0)

    def _insert(self, new: Tensor) -> None:
        """Insert ascending unknown keys in linear time; sorting again would cost more than a round saves."""
        at = torch.searchsorted(self.keys, new) + torch.arange(len(new), device=new.device)
        size = len(self) + len(new)
        is_old = torch.ones(size, dtype=torch.bool, device=new.device).index_fill(0, at, False)
        old = is_old.nonzero().squeeze(-1)
        keys, counts, seen = (
            column.new_zeros(size).index_copy(0, old, column) for column in (self.keys, self.counts, self.seen)
        )
        self.keys, self.counts, self.seen = keys.index_copy(0, at, new), counts, seen

    def _forget(self) -> None:
        """Drop the pairs that were met longest ago, a sixteenth of the table at a time, so that this happens rarely."""
        excess = len(self) - self.capacity
        if excess > 0:
            oldest = self.seen.topk(excess + self.capacity // 16, largest=False).indices
            stays = torch.ones_like(self.keys, dtype=torch.bool).index_fill(0, oldest, False)
            self.keys, self.counts, self.seen = self.keys[stays], self.counts[stays], self.seen[stays]


def pair_key(x: Tensor, t: Tensor) -> Tensor:
    """One int64 per pair of token ids."""
    return x.long() * STRIDE + t.long()


def is_table(tensors: dict[str, Tensor]) -> bool:
    """Whether tensors from a file are the columns of a table."""
    if set(tensors) != {"keys", "counts", "seen"}:
        return False
    shapes = {(column.dtype, tuple(column.shape)) for column in tensors.values()}
    if shapes != {(torch.long, (tensors["keys"].numel(),))}:
        return False
    keys, counts = tensors["keys"], tensors["counts"]
    return bool((keys >= 0).all() and (keys.diff() > 0).all() and (counts > 0).all())
