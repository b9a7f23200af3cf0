"""Keys and values of a batch: a cache that grows in place and hands single rows out and in again.

Axis letters: B rows, H key/value heads, S slots, T tokens of a text, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

Texts = Sequence[Sequence[int]]  # prompt and answer of each row, as token ids


class GrowingLayer(DynamicLayer):
    """A layer of full attention that writes into spare room.

    Layers with sliding windows are such layers, too: masks hide what lies outside of a window.
    """

    spare = 96  # slots that are added beyond what is needed whenever the room runs out
    rooms: Sequence[Tensor] = ()  # keys and values [B, H, S', D]; the first S slots are in use

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        added = (key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[2]
        if not self.rooms or self.rooms[0].shape[2] < end:
            size = end + max(self.spare, start // 2)
            larger = [new.new_empty(*new.shape[:2], size, new.shape[3]) for new in added]
            for room, old in zip(larger, self.rooms):
                room[:, :, :start] = old[:, :, :start]
            self.rooms = larger
        for room, new in zip(self.rooms, added):
            room[:, :, start:end] = new
        self._use(end)
        return self.keys, self.values

    def _use(self, num: int) -> None:
        if self.rooms:
            self.keys, self.values = (room[:, :, :num] for room in self.rooms)

    def gather_last(self, num: int, index: Tensor) -> None:
        """Move those of the last `num` slots that `index [B, L]` names to the front of these."""
        first = self.get_seq_length() - num
        for room in self.rooms:
            last = room[:, :, first : first + num]
            chosen = index[:, None, :, None].to(room.device)
            last[:, :, : index.shape[1]] = last.take_along_dim(chosen, dim=2)

    def pack(self, slots: Tensor, entrants: GrowingLayer | None, theirs: Tensor) -> None:
        """Keep only `slots [B, S]` of every row, and append rows that keep only `theirs [B', S]`.

        `entrants` is the layer of the appended rows, None where they have read nothing.
        """
        batch, num = slots.shape
        packed = []
        for half, room in enumerate(self.rooms):
            new = room.new_zeros(
                batch + len(theirs), room.shape[1], num + self.spare, room.shape[3]
            )
            copy_slots(room, slots, new)
            if entrants is not None:
                copy_slots(entrants.rooms[half], theirs, new[batch:])
            packed.append(new)
        self.rooms = packed
        self._use(num)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows `[B']` of the batch, in that order."""
        self.rooms = [room[indices.to(room.device)] for room in self.rooms]
        self._use(self.get_seq_length())


def copy_slots(old: Tensor, slots: Tensor, new: Tensor) -> None:
    """Copy `slots [B, S]` of the rows of `old [B, H, ., D]` to the first S slots of `new`."""
    for row, index in enumerate(slots.to(old.device)):
        new[row, :, : len(index)] = old[row].index_select(1, index)


@dataclass(frozen=True)
class RowCache:
    """The keys and values of one text, without holes: for each layer a pair `[H, T, D]`."""

    layers: Sequence[tuple[Tensor, Tensor]] = ()

    @property
    def length(self) -> int:
        """T, the tokens that are remembered."""
        return self.layers[0][0].shape[1] if self.layers else 0

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(half.nbytes for layer in self.layers for half in layer)

    def first(self, num: int) -> RowCache:
        """What is remembered of the first `num` tokens, in the same memory."""
        return RowCache([(keys[:, :num], values[:, :num]) for keys, values in self.layers])


NOTHING_READ = RowCache()


def join_rows(rows: Sequence[RowCache]) -> Cache:
    """A batch whose rows remember these texts, left-padded."""
    cache = Cache(layer_class_to_replicate=GrowingLayer)
    longest = max(rows, key=attrgetter("length"))
    empty = longest.first(0).layers
    for index in range(len(empty) if longest.length else 0):
        pairs = [(row.layers or empty)[index] for row in rows]
        cache.update(*map(left_padded_states, zip(*pairs)), index)
    return cache


def left_padded_states(rows: Sequence[Tensor]) -> Tensor:
    """Keys or values [H, T, D] of texts of unequal length as [B, H, longest, D]."""
    states = [row.transpose(0, 1) for row in rows]
    return pad_sequence(states, batch_first=True, padding_side="left").transpose(1, 2)


def right_aligned(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """The slots in use [B, longest] of rows that end at the last slot; None where all are."""
    widest = max(lengths)
    if min(lengths) == widest:
        return None
    unused_B = widest - torch.tensor(lengths, device=device)
    return torch.arange(widest, device=device) >= unused_B[:, None]


def last_in_use(mask: Tensor, num: int) -> Tensor:
    """The places of the last `num` slots in use of each row of `mask [B, S]`, as [B, num].

    A row with fewer slots in use has any places in front of them.
    """
    order = mask.long().argsort(dim=1, stable=True)
    order = nn.functional.pad(order, (max(0, num - order.shape[1]), 0))
    return order[:, order.shape[1] - num :]
