"""Programs and memory of a target, kept from request to request: building them takes seconds, using them none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.decoding.engines.program import Captured, Program, build, missing_compiler
from gistgate.decoding.engines.slots import allocate

Key = tuple[object, ...]
MOST_PROGRAMS, MOST_MEMORIES = 64, 6
"""Kept at a time; the one that was not used for longest goes first."""


class Store:
    """What one model has ready."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.form = form_of(model)
        self.programs: OrderedDict[tuple[object, ...], Program] = OrderedDict()
        self.memories: OrderedDict[tuple[int, int], list[Tensor]] = OrderedDict()

    def memory(self, model: PreTrainedModel, batch: int, slots: int) -> list[Tensor]:
        """Keys and values of `model` for a batch; what they hold is of no interest."""
        key = (batch, slots)
        if key not in self.memories:
            while len(self.memories) >= MOST_MEMORIES:
                self.forget(*self.memories.popitem(last=False))
            self.memories[key] = allocate(model, batch, slots)
        self.memories.move_to_end(key)
        return self.memories[key]

    def forget(self, key: tuple[int, int], _memory: list[Tensor]) -> None:
        """Drop the programs of a memory that goes: on a GPU they know its addresses."""
        for name in [name for name in self.programs if name[:2] == key]:
            del self.programs[name]

    def program(self, key: Key, function: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]) -> Program:
        """The program of `function` for this memory (`key` begins with batch and slots) and inputs like `example`."""
        return self.replayed(key, lambda: self._built(function, fixed, example), fixed, example)

    def compiled(self, key: Key, function: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]) -> Program:
        """The same as a part of another program, which is never replayed by itself."""
        return self._kept(key, lambda: self._built(function, fixed, example))

    def replayed(
        self, key: Key, make: Callable[[], Program], fixed: Sequence[Tensor], example: Sequence[Tensor]
    ) -> Program:
        """What `make` gives, whose calls one graph replays on a GPU."""

        def captured() -> Program:
            made = make()
            return Captured(made, fixed, example) if self._device.type == "cuda" else made

        return self._kept(key, captured)

    def _kept(self, key: Key, make: Callable[[], Program]) -> Program:
        if key not in self.programs:
            while len(self.programs) >= MOST_PROGRAMS:  # first, since building needs memory
                self.programs.popitem(last=False)
            self.programs[key] = make()
        self.programs.move_to_end(key)
        return self.programs[key]

    def _built(self, function: Program, fixed: Sequence[Tensor], example: Sequence[Tensor]) -> Program:
        return build(function, [*fixed, *example], compiles=missing_compiler(self._device) is None)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.form[0]
        return device


def form_of(model: PreTrainedModel) -> tuple[Any, ...]:
    """What programs of a model depend on besides its values."""
    lighter = getattr(model, "quantised", None), getattr(model, "subset", None)
    return (model.device, model.dtype, *lighter)


_stores: WeakKeyDictionary[PreTrainedModel, Store] = WeakKeyDictionary()


def forget(models: Sequence[PreTrainedModel]) -> None:
    """Give back what these models have ready, for somebody who needs the memory more."""
    for model in models:
        _stores.pop(model, None)


def store_of(model: PreTrainedModel) -> Store:
    """The store of a model; one that moved to another device or dtype, or was made lighter since, begins anew."""
    known = _stores.get(model)
    if known is None or known.form != form_of(model):
        known = _stores[model] = Store(model)
    return known


def rounded(slots: int) -> int:
    """Slots of a memory with room for that many: few sizes, so that few programs are built."""
    size = 256
    while size < slots:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size
