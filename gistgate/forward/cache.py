"""A key-value cache that grows in place, forgets its tail for free, and hands single rows out and in again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """A dynamic full-attention layer that writes into spare room instead of concatenating at every step.

    Sliding-window models are exact with it as well: their masks hide what lies outside the window.
    """

    spare = 96
    """Slots that are added beyond what is needed whenever the room runs out."""
    keys: Tensor
    values: Tensor
    _room_k: Tensor
    _room_v: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old, new = self.get_seq_length(), key_states.shape[-2]
        if old == 0 or self._room_k.shape[-2] < old + new:
            self._room_k = grown(self.keys, key_states, old, old + new + max(self.spare, old // 2))
            self._room_v = grown(self.values, value_states, old, old + new + max(self.spare, old // 2))
        self._room_k[:, :, old : old + new] = key_states
        self._room_v[:, :, old : old + new] = value_states
        self.keys, self.values = self._room_k[:, :, : old + new], self._room_v[:, :, : old + new]
        return self.keys, self.values

    def drop_last(self, num: int) -> None:
        """Forget the last `num` slots of every row; the room stays."""
        if num and self.is_initialized:
            kept = self.get_seq_length() - num
            self.keys, self.values = self._room_k[:, :, :kept], self._room_v[:, :, :kept]

    def gather_last(self, num: int, index: Tensor) -> None:
        """Move those of the last `num` slots that `index [B, L]` names to their front; what was there is lost."""
        if self.is_initialized:
            first, length = self.get_seq_length() - num, index.shape[1]
            index = index.to(self.device)
            for room in (self._room_k, self._room_v):
                chosen = index[:, None, :, None].expand(-1, room.shape[1], -1, room.shape[3])
                room[:, :, first : first + length] = room[:, :, first : first + num].gather(2, chosen)

    def pack(self, slots: Tensor, other: GrowingLayer | None, theirs: Tensor) -> None:
        """Keep of every row only `slots [B, S]`, in that order, and append rows with the slots `theirs [B', S]`.

        These are slots of `other`; None: of a layer that has read nothing, which matters to nobody.
        """
        (batch, used), room = slots.shape, slots.shape[1] + self.spare
        for name in ("_room_k", "_room_v"):
            old: Tensor = getattr(self, name)
            new = old.new_zeros(batch + len(theirs), old.shape[1], room, old.shape[3])
            copy_slots(old, slots, new[:batch])
            if other is not None:
                copy_slots(getattr(other, name), theirs, new[batch:])
            setattr(self, name, new)
        self.keys, self.values = self._room_k[:, :, :used], self._room_v[:, :, :used]

    def select(self, rows: Tensor) -> None:
        """Keep only `rows [B']` of the batch, in that order."""
        if self.is_initialized:
            used, rows = self.get_seq_length(), rows.to(self.device)
            self._room_k, self._room_v = self._room_k[rows], self._room_v[rows]
            self.keys, self.values = self._room_k[:, :, :used], self._room_v[:, :, :used]


def copy_slots(old: Tensor, slots: Tensor, new: Tensor) -> None:
    """Copy `slots [B, S]` of every row of `old [B, H, ., D]` to the first S slots of `new`."""
    for row, index in enumerate(slots.to(old.device)):
        new[row, :, : len(index)] = old[row].index_select(1, index)


def grown(used: Tensor, like: Tensor, num_used: int, num_slots: int) -> Tensor:
    """A buffer `[B, H, num_slots, D]` shaped after `like` that begins with `used`."""
    room = like.new_empty(*like.shape[:-2], num_slots, like.shape[-1])
    if num_used:
        room[:, :, :num_used] = used
    return room


def new_cache() -> Cache:
    """An empty cache of growing layers."""
    return Cache(layer_class_to_replicate=GrowingLayer)


@dataclass(frozen=True)
class RowCache:
    """The keys and values of one text, without holes: for each layer a pair `[H, T, D]`."""

    layers: list[tuple[Tensor, Tensor]]

    @property
    def length(self) -> int:
        """Tokens remembered."""
        return self.layers[0][0].shape[-2] if self.layers else 0

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(half.numel() * half.element_size() for layer in self.layers for half in layer)


def take_row(cache: Cache, row: int, slots: Tensor) -> RowCache:
    """Copy the `slots [T]` of one row out of a batch."""
    layers = []
    for layer in cache.layers:  # of a model that is spread over devices each may be on another one
        chosen = slots.to(layer.keys.device)
        layers.append((layer.keys[row, :, chosen], layer.values[row, :, chosen]))
    return RowCache(layers)


def join_rows(rows: list[RowCache], lengths: list[int]) -> Cache:
    """A batch whose row b remembers the first `lengths[b]` tokens of `rows[b]`, left-padded."""
    cache, widest = new_cache(), max(lengths)
    filled = next((row for row in rows if row.layers), RowCache([]))
    for index in range(len(filled.layers) if widest else 0):
        keys, values = ([(row if row.layers else filled).layers[index][half] for row in rows] for half in (0, 1))
        cache.update(padded(keys, lengths, widest), padded(values, lengths, widest), index)
    return cache


def right_aligned(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """The slots in use [B, longest] of rows that end at the last slot and have no holes; None where that is all."""
    widest = max(lengths)
    if min(lengths) == widest:
        return None
    return torch.arange(widest, device=device) >= widest - torch.tensor(lengths, device=device)[:, None]


def last_in_use(mask: Tensor, num: int) -> Tensor:
    """For each row of slots in use [B, S] the places of the last `num` of them [B, num], in order.

    A row with fewer has any places in front of them.
    """
    every = mask.long().argsort(dim=1, stable=True)
    every = nn.functional.pad(every, (max(0, num - every.shape[1]), 0))
    return every[:, every.shape[1] - num :]


def padded(parts: list[Tensor], lengths: list[int], widest: int) -> Tensor:
    """Stack `[H, T_b, D]`, each cut to its length and right-aligned, into `[B, H, widest, D]`."""
    first = parts[0]
    out = first.new_zeros(len(parts), first.shape[0], widest, first.shape[-1])
    for row, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        out[row, :, widest - length :] = part[:, :length]
    return out
