"""Keys and values in memory of a fixed shape: token number i of a row lies in slot i, later ones
overwrite it.

Axis letters: B rows, H key/value heads, S slots, N new tokens, D width of a head.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gistgate.compiled.program import Captured, Program, UnsupportedError, build, missing_compiler
from gistgate.core.architecture import context_of
from gistgate.core.attention import SPECIAL, additive, attend, attending, configs_of
from gistgate.core.features import decoder_layers
from gistgate.core.reader import last_logits
from gistgate.core.utils import UserError

ATTENTION = "gistgate_slots"
"""Name under which transformers finds `attend_to_slots`."""


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, written at the slots that the current forward names."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.values = values
        self.slots = slots
        self.rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        self.keys[self.rows, :, self.slots] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.slots] = value_states.transpose(1, 2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return self.keys.shape[-2]


def attend_to_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`gistgate.core.attention.attend`; a wish that it cannot fulfil has no program."""
    for name in SPECIAL:
        if kwargs.get(name) is not None:
            raise UnsupportedError(f"{type(module).__name__} wants '{name}' in its attention")
    return attend(query, key, value, attention_mask, scaling)


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend_to_slots)


def attending_to_slots(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While open, forwards of `model` use `attend_to_slots`; programs made meanwhile keep it."""
    return attending(configs_of(model), ATTENTION)


@torch.no_grad()
def allocate(model: PreTrainedModel, batch: int, slots: int) -> list[Tensor]:
    """Zeroed memory for every layer: keys, values, keys, values ... each [B, H, S, D], as the model
    itself caches.
    """
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    layers = model(ids, use_cache=True).past_key_values.layers
    halves = [half for layer in layers for half in (layer.keys, layer.values)]
    with torch.inference_mode(False):  # such tensors may be written anywhere
        return [half.new_zeros(batch, half.shape[1], slots, half.shape[-1]) for half in halves]


def forward(
    model: PreTrainedModel,
    memory: Sequence[Tensor],
    ids: Tensor,
    positions: Tensor,
    keep: int,
) -> Tensor:
    """Read `ids [B, N]` as tokens number `positions [B, N]` of their rows; logits of the last
    `keep`, float32.
    """
    # The last slot belongs to tokens of no meaning, whose position is below 0, and to those beyond
    # the memory.
    last = memory[0].shape[-2] - 1
    slots = torch.where(positions < 0, last, positions).clamp_max(last)
    pairs = zip(memory[::2], memory[1::2])
    layers = [SlotLayer(keys, values, slots) for keys, values in pairs]
    places = positions.clamp_min(0)
    mask = additive(torch.arange(last + 1, device=ids.device) <= places[..., None], memory[0].dtype)
    context = context_of(model.config.get_text_config())
    if context is not None:
        places = places.clamp_max(context - 1)
    return last_logits(
        model,
        keep,
        input_ids=ids,
        position_ids=places,
        attention_mask=mask,
        past_key_values=Cache(layers=layers),
    )


Key = tuple[object, ...]
MOST_PROGRAMS = 64
"""Programs of a model that are kept; the one that was not used for longest goes first."""
MOST_MEMORIES = 6
"""Memories of a model that are kept, in the same way."""


class Store:
    """What one model has ready."""

    def __init__(self, form: tuple[Any, ...]) -> None:
        """`form` is what programs of the model depend on besides its values."""
        self.form = form
        self.programs: dict[Key, Program] = {}
        self.memories: dict[Key, list[Tensor]] = {}
        self.parts: WeakValueDictionary[str, Program] = WeakValueDictionary()
        """Parts that the programs share."""

    def memory(self, model: PreTrainedModel, batch: int, slots: int) -> list[Tensor]:
        """Keys and values of `model` for a batch; what they hold is of no interest."""
        size = (batch, slots)
        memory = self.memories.pop(size, None)
        if memory is None:
            while len(self.memories) >= MOST_MEMORIES:
                oldest = next(iter(self.memories))
                del self.memories[oldest]
                for key in [key for key in self.programs if key[:2] == oldest]:
                    del self.programs[key]  # on a GPU they know the memory's addresses
            memory = allocate(model, batch, slots)
        self.memories[size] = memory  # the last one
        return memory


def program_of(
    model: PreTrainedModel,
    key: Key,
    function: Program,
    memory: Sequence[Tensor],
    example: Sequence[Tensor],
    builds: bool = True,
    replays: bool = True,
) -> Program:
    """The program of `function`, told apart by `key`; made of programs it `builds` nothing, a part
    `replays` none.
    """
    store = store_of(model)
    device = memory[0].device
    key = (len(memory[0]), memory[0].shape[-2], *key)
    program = store.programs.pop(key, None)
    if program is None:
        while len(store.programs) >= MOST_PROGRAMS:  # first, since building needs memory
            del store.programs[next(iter(store.programs))]
        program = function
        with attending_to_slots(model):
            if builds:
                compiles = missing_compiler(device) is None
                layers = layers_of(model)
                program = build(program, [*memory, *example], layers, compiles, store.parts)
            if replays and device.type == "cuda":
                program = Captured(program, memory, example)
    store.programs[key] = program  # the last one
    return program


def layers_of(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The decoder layers; none of a model that has no list of them."""
    try:
        return list(decoder_layers(model))
    except UserError:
        return ()


_stores: WeakKeyDictionary[PreTrainedModel, Store] = WeakKeyDictionary()


def forget(models: Sequence[PreTrainedModel]) -> None:
    """Give back what these models have ready, for somebody who needs the memory more."""
    for model in models:
        _stores.pop(model, None)


def store_of(model: PreTrainedModel) -> Store:
    """The store of a model; one that moved to another device or dtype, or was made lighter since,
    begins anew.
    """
    lighter = (getattr(model, "quantised", None), getattr(model, "subset", None))
    form = (model.device, model.dtype, *lighter)
    store = _stores.get(model)
    if store is None or store.form != form:
        store = Store(form)
        _stores[model] = store
    return store


def rounded(slots: int) -> int:
    """Slots of a memory with room for that many: few sizes, so that few programs are built."""
    size = 256
    while size < slots:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size
