"""One model reading a batch of texts: its cache, what of it is in use, and how far it has read.

Refused slots become holes that a mask hides, and positions are given explicitly: a row depends on
its own text alone.

Axis letters: B rows, S cache slots, N new tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from inspect import signature
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from gistgate.core.architecture import context_of, counts_slots
from gistgate.core.attention import attending, fused_on_cpu, pays, unplanned
from gistgate.core.cache import (
    GrowingLayer,
    RowCache,
    Texts,
    join_rows,
    last_in_use,
    right_aligned,
)
from gistgate.core.utils import UserError


def last_logits(model: PreTrainedModel, keep: int, **inputs: Any) -> Tensor:
    """Logits [B, keep, V] of the last `keep` rows, float32; `inputs` go to the model's forward."""
    is_cut = inputs["input_ids"].shape[1] > keep
    with contiguous_rows(model) if is_cut else nullcontext():
        out = model(**inputs, use_cache=True, logits_to_keep=keep)
    logits: Tensor = out.logits[:, -keep:].float()
    return logits


def contiguous_rows(model: PreTrainedModel) -> Any:
    """Hand the output layer its input in one piece, until the returned handle is closed.

    With gaps between rows its weight would be copied for each row.
    """
    return model.get_output_embeddings().register_forward_pre_hook(in_one_piece)


def in_one_piece(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same arguments, the first of them anew."""
    return (anew(args[0]), *args[1:])


def anew(values: Tensor) -> Tensor:
    """The same values with the strides of a new tensor.

    `Tensor.contiguous` keeps the stride of a cut-out whose only row is the first of several, at
    which PyTorch looks, too.
    """
    return values.clone(memory_format=torch.contiguous_format)


Layout = Callable[[PreTrainedModel, Tensor, int], tuple[Tensor, Tensor | dict[str, Tensor]]]
"""For a model, the slots in use [B, S + N] and N, the new tokens in the last slots: the positions
[B, N] of these, and what each of them sees, as one mask for the model's attention or one for each
kind of its layers."""

WASTE = 1.5  # slots per token of the longest row from which a cache is packed


class Reader:
    """Feeds a model with tokens and takes back those that were refused."""

    def __init__(self, model: PreTrainedModel, batch: int) -> None:
        self.model = model
        self.cache = Cache(layer_class_to_replicate=GrowingLayer)
        self.known = [0] * batch  # tokens of its text that each row's cache holds
        self.mask: Tensor | None = None  # slots in use [B, S]; None while all of them are
        self._counts_slots = counts_slots(model)  # rows may have no holes, which would be counted
        self._fused = fused_on_cpu(model)
        self._context = context_of(model.config.get_text_config())

    @property
    def slots(self) -> int:
        """S, the slots of the cache, in use or not."""
        return int(self.cache.get_seq_length())

    def unread(self, texts: Texts) -> list[Sequence[int]]:
        """The tokens of each text that are still to be read."""
        if self._counts_slots:
            # Unequal numbers of new tokens are padded, and padding between old and new ones narrows
            # the window: the rows with fewer read some of their tokens again.
            num = max(len(text) - start for text, start in zip(texts, self.known))
            level = [max(0, len(text) - num) for text in texts]
            if level != self.known:
                self._realign(level)
        return [text[start:] for text, start in zip(texts, self.known)]

    def read(
        self,
        ids: Tensor,
        valid: Tensor | None,
        keep: int,
        layout: Layout | None = None,
    ) -> Tensor:
        """Append `ids [B, N]` and return the last float32 logits [B, keep, V].

        Args:
            ids: the new tokens.
            valid: those of them that belong to a text [B, N]; None: all.
            keep: number of rows of logits.
            layout: where the new tokens stand and what they see; None: each follows those before.
        """
        num = ids.shape[1]
        before = self.slots
        new = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        if valid is not None or self.mask is not None:
            self.mask = torch.cat([self._used(), new], dim=1)
        known_B = torch.tensor(self.known, device=ids.device)
        positions = (known_B[:, None] + new.cumsum(-1) - 1).clamp_min(0)
        mask: Any = None if self.mask is None else self.mask.long()
        if layout is not None:
            positions, mask = layout(self.model, self._used(num), num)
        if self._context:  # a long draft for a neighbour may run over the end of a row
            positions = positions.clamp_max(self._context - 1)
        replaced = self._fused if pays(num, self.model.dtype) else ()
        with attending(replaced), unplanned(self.model):
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
        added = [num] * len(ids) if valid is None else valid.sum(-1).tolist()
        self.known = [before + num for before, num in zip(self.known, added)]
        return logits

    def _used(self, num: int = 0) -> Tensor:
        """Slots in use [B, S + N], those of `num` tokens about to be read included.

        A mask has these already.
        """
        if self.mask is not None:
            return self.mask
        shape = (len(self.known), self.slots + num)
        return torch.ones(shape, dtype=torch.bool, device=self.model.device)

    def keep(self, num: int, kept: Sequence[int], valid: Sequence[int] | None = None) -> None:
        """Keep the first `kept[b]` of the last `num` slots of row b, of which the first `valid[b]`
        were in use.
        """
        valid = valid or [num] * len(kept)
        slots = max(kept)
        self.known = [end - new + stay for end, new, stay in zip(self.known, valid, kept)]
        self._drop_last(num - slots)
        if min(kept) < slots:
            self.mask = self._used()
            kept_B = torch.tensor(kept, device=self.mask.device)
            places = torch.arange(slots, device=self.mask.device)
            self.mask[:, -slots:] &= places < kept_B[:, None]
        if self._counts_slots and self.mask is not None:
            self._realign(self.known)
        else:
            self._give_back()

    def keep_paths(self, num: int, paths: Texts, valid: Sequence[int] | None = None) -> None:
        """Keep the slots `paths[b]` of the last `num` slots of row b, of which `valid[b]` were in
        use.
        """
        lengths = [len(path) for path in paths]
        index = pad_sequence(
            [torch.tensor(path, dtype=torch.long) for path in paths], batch_first=True
        )
        for layer in self.cache.layers:
            layer.gather_last(num, index)
        if self.mask is not None:
            first = self.slots - num
            self.mask[:, first : first + max(lengths)] = True
        self.keep(num, lengths, valid)

    def forget(self, num: int, valid: Sequence[int]) -> None:
        """Take back the last `num` slots, of which `valid[b]` were in use, as if they had never
        been read.
        """
        self.known = [end - new for end, new in zip(self.known, valid)]
        self._drop_last(num)

    def _drop_last(self, num: int) -> None:
        if num:
            self.cache.crop(-num)
            self.mask = None if self.mask is None else self.mask[:, :-num]

    def _realign(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` tokens of each row, and remove all holes."""
        copies = self.snapshot(range(len(self.known)))
        self._begin([copy.first(num) for copy, num in zip(copies, lengths)])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows of the batch."""
        index = torch.tensor(rows, device=self.model.device)
        self.cache.batch_select_indices(index)
        self.mask = None if self.mask is None else self.mask[index]
        self.known = [self.known[row] for row in rows]
        self._give_back()

    def _give_back(self) -> None:
        """Pack a cache with many holes, or with the room of rows that left: every forward would
        read and mask it.
        """
        if self.mask is not None and self.slots > max(self.known) * WASTE:
            self._pack(Reader(self.model, 0))

    def admit(self, texts: Texts, caches: Sequence[RowCache]) -> None:
        """Append rows that have read all of their texts but the last token, of which `caches` hold
        the beginnings.
        """
        if not self.known:  # the first rows read what they have not read with their first draft
            self._begin(caches)
            return
        if not self.slots:  # all are read together
            self.known += [0] * len(texts)
            return
        entrants = Reader(self.model, 0)
        entrants.admit(texts, caches)
        unread = entrants.unread([text[:-1] for text in texts])
        if any(unread):
            entrants.read(*left_padded(unread, self.model.device), keep=1)
        self._pack(entrants)

    def _pack(self, entrants: Reader) -> None:
        """Append the rows of another reader, and make every row end at the last slot, without
        holes.
        """
        lengths = [*self.known, *entrants.known]
        mine = last_in_use(self._used(), max(lengths))
        theirs = last_in_use(entrants._used(), max(lengths))
        for layer, entering in zip_longest(self.cache.layers, entrants.cache.layers):
            layer.pack(mine, entering, theirs)
        self.known = lengths
        self.mask = right_aligned(lengths, self.model.device)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        """Copies of what the cache holds for these rows, holes removed."""
        mask = self._used()
        copies = []
        for row in rows:
            slots = mask[row].nonzero().flatten()
            layers = []
            for layer in self.cache.layers:
                # Of a model that is spread over devices each layer may be on another one.
                places = slots.to(layer.keys.device)
                keys = layer.keys[row, :, places]
                layers.append((keys, layer.values[row, :, places]))
            copies.append(RowCache(layers))
        return copies

    def _begin(self, caches: Sequence[RowCache]) -> None:
        """Replace the batch by rows that hold these caches."""
        self.cache = join_rows(caches)
        self.known = [cache.length for cache in caches]
        self.mask = right_aligned(self.known, self.model.device)


MEMORIES = ("past_key_values", "cache_params", "state")  # names under which models hand out states


class SingleReader(Reader):
    """Reads one row with a model that keeps states, and takes nothing back."""

    def __init__(self, model: PreTrainedModel, batch: int) -> None:
        super().__init__(model, batch)
        self._states: dict[str, Any] = {}

    def read(
        self,
        ids: Tensor,
        valid: Tensor | None,
        keep: int,
        layout: Layout | None = None,
    ) -> Tensor:
        start = self.known[0]
        end = start + ids.shape[1]
        inputs = dict(self._states)
        # Models of recurrences alone know no positions.
        if "position_ids" in signature(self.model.forward).parameters:
            inputs["position_ids"] = torch.arange(start, end, device=ids.device)[None]
        out = self.model(input_ids=ids, use_cache=True, **inputs)
        self._states = {name: out[name] for name in MEMORIES if out.get(name) is not None}
        self.known = [end]
        logits: Tensor = out.logits[:, -keep:].float()
        return logits


def remembered(model: PreTrainedModel, texts: Texts) -> list[RowCache]:
    """Read texts and return what a model remembers of them."""
    reader = Reader(model, len(texts))
    reader.read(*left_padded(texts, model.device), keep=1)
    return reader.snapshot(range(len(texts)))


def left_padded(rows: Texts, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Token rows of unequal length as `ids [B, N]` and `valid [B, N]`; None instead of an all-true
    mask.
    """
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_side="left")
    return ids.to(device), right_aligned([len(row) for row in rows], device)
