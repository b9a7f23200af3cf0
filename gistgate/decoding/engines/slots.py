"""Keys and values in memory of a fixed shape: token number i of a row lies in slot i, whatever its neighbours do.

Rows that accept different lengths need neither holes nor padding, and rolling back is free: a later token overwrites
its slot, and what lies behind a row's last token is never looked at. Nothing here depends on values, so programs with
fixed addresses can be made of it.

Axis letters: B rows, H key/value heads, S slots, N new tokens, D width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gistgate.decoding.engines.program import UnsupportedError
from gistgate.forward.attention import SPECIAL, attend, attending, configs_of
from gistgate.forward.context import context_of
from gistgate.forward.logits import last_logits

ATTENTION = "gistgate_slots"
"""Name under which transformers finds `attend_to_slots`."""


class SlotLayer(CacheLayerMixin):
    """One layer's keys and values, written at the slots that the current forward names."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slots = keys, values, slots
        self.rows = torch.arange(keys.shape[0], device=keys.device)[:, None]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys[self.rows, :, self.slots] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.slots] = value_states.transpose(1, 2)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[-2], 0

    def get_seq_length(self) -> int:
        return 0  # positions are always given

    def get_max_length(self) -> int:
        return self.keys.shape[-2]

    get_max_cache_shape = get_max_length


def attend_to_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`gistgate.forward.attention.attend`; what it does not know has no program."""
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
    """Zeroed memory for every layer: keys, values, keys, values ... each [B, H, S, D].

    Shapes and dtypes are those that the model itself caches for one token.
    """
    probe = model(torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True).past_key_values
    shapes = [half for layer in probe.layers for half in (layer.keys, layer.values)]
    with torch.inference_mode(False):  # such tensors may be written anywhere
        return [
            torch.zeros(batch, half.shape[1], slots, half.shape[-1], dtype=half.dtype, device=half.device)
            for half in shapes
        ]


def forward(model: PreTrainedModel, memory: Sequence[Tensor], ids: Tensor, positions: Tensor, keep: int) -> Tensor:
    """Read `ids [B, N]` as tokens number `positions [B, N]` of their rows; logits of the last `keep`, float32.

    A position below 0 reads a token of no meaning. The last slot belongs to such tokens and to those beyond the
    memory; no real token sees it.
    """
    last = memory[0].shape[-2] - 1
    slots = torch.where((positions < 0) | (positions > last), last, positions)
    layers = [SlotLayer(keys, values, slots) for keys, values in zip(memory[::2], memory[1::2], strict=True)]
    visible = torch.arange(last + 1, device=ids.device) <= positions.clamp_min(0)[..., None]
    dtype = memory[0].dtype
    mask = torch.zeros((), dtype=dtype, device=ids.device).masked_fill(~visible[:, None], torch.finfo(dtype).min)
    context = context_of(model.config.get_text_config())
    places = positions.clamp_min(0) if context is None else positions.clamp(0, context - 1)
    cache = Cache(layers=layers)
    return last_logits(model, keep, input_ids=ids, position_ids=places, attention_mask=mask, past_key_values=cache)
