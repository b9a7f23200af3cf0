"""One model reading a batch of texts: its cache, what of it is in use, and how far each row has
been read.

Refused slots become holes that a mask hides, and positions are given explicitly: a row depends on
    its own text alone.

Axis letters: B rows, S cache slots, N new tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from inspect import signature
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from gistgate.core.attention import attending, fused_on_cpu, pays, unplanned
from gistgate.core.utils import UserError

# ---- A key-value cache that grows in place, forgets its tail for free, and hands single rows out
# and in again.


class GrowingLayer(DynamicLayer):
    """A full-attention layer that writes into spare room; masks hide what lies outside of sliding
    windows.
    """

    spare = 96  # slots that are added beyond what is needed whenever the room runs out
    keys: Tensor
    values: Tensor
    _room_k: Tensor
    _room_v: Tensor

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = key_states.shape[-2]
        if old == 0 or self._room_k.shape[-2] < old + new:
            self._room_k = self._grown(self.keys, key_states, old)
            self._room_v = self._grown(self.values, value_states, old)
        self._room_k[:, :, old : old + new] = key_states
        self._room_v[:, :, old : old + new] = value_states
        self._use(old + new)
        return self.keys, self.values

    def _grown(self, used: Tensor, added: Tensor, num_used: int) -> Tensor:
        """A buffer [B, H, S, D] with room for what is added and more, which begins with `used`."""
        num_slots = num_used + added.shape[-2] + max(self.spare, num_used // 2)
        room = added.new_empty(*added.shape[:-2], num_slots, added.shape[-1])
        if num_used:
            room[:, :, :num_used] = used
        return room

    def _use(self, num: int) -> None:
        self.keys = self._room_k[:, :, :num]
        self.values = self._room_v[:, :, :num]

    def drop_last(self, num: int) -> None:
        """Forget the last `num` slots of every row; the room stays."""
        if num and self.is_initialized:
            self._use(self.get_seq_length() - num)

    def gather_last(self, num: int, index: Tensor) -> None:
        """Move those of the last `num` slots that `index [B, L]` names to their front; what was
        there is lost.
        """
        if self.is_initialized:
            first = self.get_seq_length() - num
            length = index.shape[1]
            index = index.to(self.device)
            for room in (self._room_k, self._room_v):
                chosen = index[:, None, :, None].expand(-1, room.shape[1], -1, room.shape[3])
                room[:, :, first : first + length] = room[:, :, first : first + num].gather(
                    2, chosen
                )

    def pack(self, slots: Tensor, other: GrowingLayer | None, theirs: Tensor) -> None:
        """Keep of every row only `slots [B, S]`, and append rows of `other` (None: it read nothing)
        with `theirs`.
        """
        batch, used = slots.shape
        room = slots.shape[1] + self.spare
        for name in ("_room_k", "_room_v"):
            old: Tensor = getattr(self, name)
            new = old.new_zeros(batch + len(theirs), old.shape[1], room, old.shape[3])
            copy_slots(old, slots, new[:batch])
            if other is not None:
                copy_slots(getattr(other, name), theirs, new[batch:])
            setattr(self, name, new)
        self._use(used)

    def select(self, rows: Tensor) -> None:
        """Keep only `rows [B']` of the batch, in that order."""
        if self.is_initialized:
            used = self.get_seq_length()
            rows = rows.to(self.device)
            self._room_k = self._room_k[rows]
            self._room_v = self._room_v[rows]
            self._use(used)


def copy_slots(old: Tensor, slots: Tensor, new: Tensor) -> None:
    """Copy `slots [B, S]` of every row of `old [B, H, ., D]` to the first S slots of `new`."""
    for row, index in enumerate(slots.to(old.device)):
        new[row, :, : len(index)] = old[row].index_select(1, index)


@dataclass(frozen=True)
class RowCache:
    """The keys and values of one text, without holes: for each layer a pair `[H, T, D]`."""

    layers: list[tuple[Tensor, Tensor]]

    @property
    def length(self) -> int:
        return self.layers[0][0].shape[-2] if self.layers else 0

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return sum(half.numel() * half.element_size() for layer in self.layers for half in layer)


def join_rows(rows: list[RowCache], lengths: list[int]) -> Cache:
    """A batch whose row b remembers the first `lengths[b]` tokens of `rows[b]`, left-padded."""
    cache = Cache(layer_class_to_replicate=GrowingLayer)
    widest = max(lengths)
    filled = next((row for row in rows if row.layers), RowCache([]))

    def padded(parts: list[Tensor]) -> Tensor:
        both = zip(parts, lengths, strict=True)
        return torch.stack(
            [nn.functional.pad(part[:, :num], (0, 0, widest - num, 0)) for part, num in both]
        )

    for index in range(len(filled.layers) if widest else 0):
        keys, values = (
            [(row if row.layers else filled).layers[index][half] for row in rows] for half in (0, 1)
        )
        cache.update(padded(keys), padded(values), index)
    return cache


def right_aligned(lengths: Sequence[int], device: torch.device) -> Tensor | None:
    """The slots in use [B, longest] of rows that end at the last slot and have no holes; None where
    that is all.
    """
    widest = max(lengths)
    if min(lengths) == widest:
        return None
    return (
        torch.arange(widest, device=device)
        >= widest - torch.tensor(lengths, device=device)[:, None]
    )


def last_in_use(mask: Tensor, num: int) -> Tensor:
    """Of slots in use [B, S] the places of the last `num` of each row [B, num]; one with fewer has
    any before them.
    """
    every = mask.long().argsort(dim=1, stable=True)
    every = nn.functional.pad(every, (max(0, num - every.shape[1]), 0))
    return every[:, every.shape[1] - num :]


def last_logits(model: PreTrainedModel, keep: int, **inputs: Any) -> Tensor:
    """Logits [B, keep, V] of the last `keep` rows in float32; `inputs` are the arguments of the
    model's forward.
    """
    is_cut = inputs["input_ids"].shape[1] > keep
    with contiguous_rows(model) if is_cut else nullcontext():
        out = model(**inputs, use_cache=True, logits_to_keep=keep)
    logits: Tensor = out.logits[:, -keep:].float()
    return logits


def contiguous_rows(model: PreTrainedModel) -> RemovableHandle:
    """Hand the output layer its input in one piece: with gaps between rows its weight would be
    copied for each row.
    """
    handle: RemovableHandle = model.get_output_embeddings().register_forward_pre_hook(in_one_piece)
    return handle


def in_one_piece(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same arguments, the first of them with the strides of a new tensor."""
    # `contiguous` keeps the stride of a cut-out whose only row is the first of several, at which
    # PyTorch looks, too.
    rows = args[0].contiguous()
    return (rows.view(-1, rows.shape[-1]).view(rows.shape), *args[1:])


def context_of(config: Any) -> int | None:
    """Tokens that a model reads, of its text configuration; None where it does not say. The second
    name is MPT's.
    """
    names = ("max_position_embeddings", "max_seq_len")
    return next(
        (int(value) for name in names if (value := getattr(config, name, None)) and value > 0), None
    )


def num_ids(tokenizer: Any) -> int:
    """One more than the largest id of a tokenizer: its length counts entries, and ids may have
    gaps.
    """
    largest: int = max(tokenizer.get_vocab().values())
    return 1 + largest


Layout = Callable[[PreTrainedModel, Tensor, int], tuple[Tensor, Tensor | dict[str, Tensor]]]
"""For a model, the slots in use [B, S + N] and N, the new tokens in the last slots: the positions
[B, N] of these, and what each of them sees, as one mask for the model's attention or one for each
kind of its layers."""

BY_SLOT = (
    "gpt_neo",
    "mpt",
)  # models with masks or biases by slot: local layers of GPT-Neo, the ALiBi of MPT
CHUNKED = (
    "attention_chunk_size",
    "attn_temperature_tuning",
)  # Llama 4's settings of chunks of slots, scaled by slot
WASTE = 1.5  # slots per token of the longest row from which a cache is packed


class Reader:
    """Feeds a model with tokens and takes back those that were refused."""

    def __init__(self, model: PreTrainedModel, batch: int) -> None:
        self.model = model
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)
        self.known = [0] * batch  # tokens of its text that each row's cache holds
        self.mask: Tensor | None = (
            None  # slots in use [B, S]; None while every slot of every row is
        )
        self._in_slots = batch > 1 and counts_slots(model)
        self._fused = fused_on_cpu(model)
        self._context = context_of(model.config.get_text_config())

    @property
    def slots(self) -> int:
        """S, the slots of the cache, in use or not."""
        return int(self.cache.get_seq_length())

    def unread(self, texts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """The tokens of each text that are still to be read."""
        if self._in_slots:
            # Unequal numbers of new tokens are padded, and padding between old and new ones narrows
            # the window: the rows with fewer read some of their tokens again.
            most = max(len(text) - known for text, known in zip(texts, self.known, strict=True))
            level = [max(0, len(text) - most) for text in texts]
            if level != self.known:
                self.restore(self.snapshot(range(len(texts))), level)
        return [text[known:] for text, known in zip(texts, self.known, strict=True)]

    def read(
        self, ids: Tensor, valid: Tensor | None, keep: int, layout: Layout | None = None
    ) -> Tensor:
        """Append `ids [B, N]` (those where `valid [B, N]`; None: all) and return the last float32
        logits [B, keep, V].

        A `layout` says where the new tokens stand and what they see; without one each follows those
        before it.
        """
        batch, num = ids.shape
        before = self.slots
        mask: Tensor | dict[str, Tensor] | None
        known = torch.tensor(self.known, device=ids.device)
        if valid is None and self.mask is None:
            positions = known[:, None] + torch.arange(num, device=ids.device)
        else:
            new = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            self.mask = torch.cat([self._used(0), new], dim=1)
            positions = (known[:, None] + new.cumsum(-1) - 1).clamp_min(0)
        mask = None if self.mask is None else self.mask.long()
        if layout is not None:
            positions, mask = layout(self.model, self._used(num), num)
        if (
            self._context
        ):  # a draft may run over the end of a row that has less room than its neighbours
            positions = positions.clamp_max(self._context - 1)
        with attending(self._fused if pays(num, self.model.dtype) else ()), unplanned(self.model):
            logits = last_logits(
                self.model,
                keep,
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self.cache,
            )
        if self.slots - before != num:
            raise UserError(
                f"{type(self.model).__name__} fills no cache of keys and values. Use a decoder-only"
                " model."
            )
        added = [num] * batch if valid is None else valid.sum(-1).tolist()
        self.known = [k + n for k, n in zip(self.known, added, strict=True)]
        return logits

    def _used(self, num: int) -> Tensor:
        """Slots in use [B, S + N], those of `num` tokens about to be read included (a mask has them
        already).
        """
        if self.mask is not None:
            return self.mask
        return torch.ones(
            len(self.known), self.slots + num, dtype=torch.bool, device=self.model.device
        )

    def keep(self, num: int, kept: Sequence[int], valid: Sequence[int] | None = None) -> None:
        """Keep the first `kept[b]` of the last `num` slots of row b, of which the first `valid[b]`
        were in use.
        """
        valid = valid or [num] * len(kept)
        self.known = [k - v + n for k, v, n in zip(self.known, valid, kept, strict=True)]
        slots = max(kept)
        self._drop_last(num - slots)
        if slots and min(kept) < slots:
            self.mask = self._used(0)
            stays = (
                torch.arange(slots, device=self.mask.device)
                < torch.tensor(kept, device=self.mask.device)[:, None]
            )
            self.mask[:, -slots:] &= stays
        if self._in_slots and self.mask is not None:
            self.restore(self.snapshot(range(len(self.known))), self.known)
        else:
            self._give_back()

    def keep_paths(
        self, num: int, paths: Sequence[Sequence[int]], valid: Sequence[int] | None = None
    ) -> None:
        """Keep the slots `paths[b]` of the last `num` slots of row b, of which `valid[b]` were in
        use.
        """
        longest = max(map(len, paths))
        if longest:
            index = torch.tensor(
                [[*path, *[0] * (longest - len(path))] for path in paths], device=self.model.device
            )
            for layer in self.cache.layers:
                layer.gather_last(num, index)
            if self.mask is not None:
                self.mask[:, self.slots - num : self.slots - num + longest] = True
        self.keep(num, [len(path) for path in paths], valid)

    def forget(self, num: int, valid: Sequence[int]) -> None:
        """Take back the last `num` slots, of which `valid[b]` were in use, as if they had never
        been read.
        """
        self.known = [k - v for k, v in zip(self.known, valid, strict=True)]
        self._drop_last(num)

    def _drop_last(self, num: int) -> None:
        for layer in self.cache.layers:
            layer.drop_last(num)
        if self.mask is not None and num:
            self.mask = self.mask[:, :-num]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows of the batch."""
        index = torch.tensor(rows, device=self.model.device)
        for layer in self.cache.layers:
            layer.select(index)
        if self.mask is not None:
            self.mask = self.mask[index]
        self.known = [self.known[row] for row in rows]
        self._give_back()

    def _give_back(self) -> None:
        """Pack a cache with many holes, or with the room of rows that left: every forward would
        read and mask it.
        """
        if self.mask is not None and self.slots > max(self.known) * WASTE:
            self._pack(Reader(self.model, 0))

    def admit(
        self, texts: Sequence[Sequence[int]], caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        """Append rows that have read all of their texts but the last token, of which `caches[b]`
        hold `lengths[b]`.
        """
        if not self.slots:  # all are read together
            self.known = [0] * (len(self.known) + len(texts))
            self._in_slots = counts_slots(self.model)
            return
        other = Reader(self.model, len(texts))
        other.restore(caches, lengths)
        if any(unread := other.unread([text[:-1] for text in texts])):
            other.read(*left_padded(unread, self.model.device), keep=1)
        self._pack(other)

    def _pack(self, other: Reader) -> None:
        """Append the rows of another reader, and make every row end at the last slot, without
        holes.
        """
        known = [*self.known, *other.known]
        mine, theirs = (last_in_use(reader._used(0), max(known)) for reader in (self, other))
        for layer, more in zip_longest(self.cache.layers, other.cache.layers):
            layer.pack(mine, more, theirs)
        self.known, self.mask = known, right_aligned(known, self.model.device)
        self._in_slots = len(known) > 1 and counts_slots(self.model)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        """Copies of what the cache holds for these rows, holes removed."""
        every = torch.arange(self.slots, device=self.model.device)
        found = []
        for row in rows:
            slots = every if self.mask is None else every[self.mask[row]]
            # Of a model that is spread over devices each layer may be on another one.
            places = [(layer, slots.to(layer.keys.device)) for layer in self.cache.layers]
            found.append(
                RowCache(
                    [(layer.keys[row, :, at], layer.values[row, :, at]) for layer, at in places]
                )
            )
        return found

    def restore(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        """Replace the batch: row b holds the first `lengths[b]` tokens of `caches[b]`."""
        self.cache = join_rows(caches, list(lengths))
        self.known = list(lengths)
        self.mask = right_aligned(self.known, self.model.device)


MEMORIES = (
    "past_key_values",
    "cache_params",
    "state",
)  # names under which models hand out what they remember
KEYS_AND_VALUES = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "DummyLayer",
}  # layers of caches that forget at will


def keeps_states(model: PreTrainedModel) -> bool:
    """True when a model remembers more of a text than keys and values: states of convolutions,
    recurrences, indices.
    """
    kinds: set[str] = set()
    with suppress(
        AttributeError, KeyError, ValueError
    ):  # the configuration does not name its layers
        kinds = {
            type(layer).__name__
            for layer in DynamicCache(config=model.config.get_text_config()).layers
        }
    return getattr(model, "_is_stateful", False) or not kinds <= KEYS_AND_VALUES


class SingleReader(Reader):
    """Reads one row with a model that keeps states, and takes nothing back."""

    _states: dict[str, Any]

    def read(
        self, ids: Tensor, valid: Tensor | None, keep: int, layout: Layout | None = None
    ) -> Tensor:
        known = self.known[0]
        end = self.known[0] + ids.shape[1]
        given = {
            "position_ids": torch.arange(known, end, device=ids.device)[None],
            **(self._states if known else {}),
        }
        if (
            "position_ids" not in signature(self.model.forward).parameters
        ):  # recurrences alone know no positions
            del given["position_ids"]
        out = self.model(input_ids=ids, use_cache=True, **given)
        self._states = {name: out[name] for name in MEMORIES if out.get(name) is not None}
        self.known = [end]
        logits: Tensor = out.logits[:, -keep:].float()
        return logits


def remembered(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[RowCache]:
    """Read texts and return what a model remembers of them."""
    reader = Reader(model, len(texts))
    reader.read(*left_padded(texts, model.device), keep=1)
    return reader.snapshot(range(len(texts)))


def fills_slots(model: PreTrainedModel) -> bool:
    """True when a cache may have no more slots than the context: tables of distances end there."""
    return model.config.get_text_config().model_type in BY_SLOT


def counts_slots(model: PreTrainedModel) -> bool:
    """True when attention measures distances in slots of the cache, so that holes in a row change
    what it sees.
    """
    config = model.config.get_text_config()
    return (
        fills_slots(model)
        or any(getattr(config, name, None) for name in CHUNKED)
        or has_window(model)
    )


def has_window(model: PreTrainedModel) -> bool:
    """True when attention is limited to a window of slots, less than twice the context, which holes
    would narrow.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    context = context_of(config)
    if not window or not getattr(config, "use_sliding_window", True):
        return False
    return context is None or int(window) < 2 * context


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Token rows of unequal length as `ids [B, N]` and `valid [B, N]`; None instead of an all-true
    mask.
    """
    lengths = [len(row) for row in rows]
    ids = torch.tensor([[0] * (max(lengths) - len(row)) + list(row) for row in rows], device=device)
    return ids, right_aligned(lengths, device)
