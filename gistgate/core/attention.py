"""Attention of few new tokens on a processor: query heads in groups read keys and values in place.

PyTorch's fused kernel takes several times as long there, but a third less for single tokens in
float32.

Axis letters: B rows, H key/value heads, S slots, N new tokens, D width of a head, G query heads per
key/value head.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gistgate.core.utils import replaced

FUSED = "sdpa"  # the name of PyTorch's fused kernel in transformers
FEW = "gistgate_few_tokens"  # the name of `attend_to_few`
MOST = 64  # new tokens up to which two products are faster than the fused kernel
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels without that of cuDNN, which plans about a millisecond in every layer for each number of
slots that is new."""
SPECIAL = ("softcap", "s_aux", "position_bias")  # arguments that `attend` does not know


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
) -> tuple[Tensor, None]:
    """Attention of query heads in groups `[B, H G, N, D]` to `[B, H, S, D]`, which are not repeated
    for it.

    A mask `[B, 1, N, S]` of numbers is added, one of truth values says what is seen; without one
    everything is. Returns `[B, N, H G, D]` and None, as transformers wants it.
    """
    batch, heads, num, width = query.shape
    kv_heads = key.shape[1]
    scaled = query * (width**-0.5 if scaling is None else scaling)
    grouped = scaled.reshape(batch, kv_heads, -1, width)
    scores = (grouped @ key.transpose(2, 3)).unflatten(2, (-1, num))
    if mask is not None:
        mask = mask[:, :, None]
        if mask.dtype == torch.bool:
            scores = scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + mask
    # At least float32, as in transformers. The smallest float64 is -inf there: padding that sees
    # nothing would be NaN.
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=wide).to(query.dtype).flatten(2, 3)
    out = (weights @ value).view(batch, heads, num, -1)
    return out.transpose(1, 2).contiguous(), None


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What is seen `[B, N, S]` as a mask [B, 1, N, S] that is added to scores."""
    mask = torch.zeros((), dtype=dtype, device=seen.device)
    return mask.masked_fill(~seen[:, None], torch.finfo(dtype).min)


def attend_to_few(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> Any:
    """`attend` for few new tokens, and the fused kernel for everything else.

    It keeps no scores of many tokens, and knows a causal order without a mask.
    """
    num = query.shape[2]
    is_plain = not any(kwargs.get(name) is not None for name in SPECIAL)
    has_order = num == 1 or attention_mask is not None
    if is_plain and has_order and num <= MOST:
        return attend(query, key, value, attention_mask, kwargs.get("scaling"))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(FEW, attend_to_few)
ALL_MASK_ATTENTION_FUNCTIONS.register(FEW, sdpa_mask)


def configs_of(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """The configurations by which a model's modules choose their attention, each once."""
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    return list({id(config): config for config in configs}.values())


def fused_on_cpu(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """The configurations that choose the fused kernel, of a model on a processor.

    There are none of a model that has weights elsewhere.
    """
    if any(weight.device.type != "cpu" for weight in model.parameters()):
        return []
    return [config for config in configs_of(model) if config._attn_implementation == FUSED]


def pays(num: int, dtype: torch.dtype) -> bool:
    """Whether two products are faster than the fused kernel for `num` new tokens in each row."""
    return num <= MOST and (num > 1 or dtype != torch.float32)


def unplanned(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While open, let forwards on a GPU use kernels that plan nothing."""
    return sdpa_kernel(UNPLANNED) if model.device.type == "cuda" else nullcontext()


@contextmanager
def attending(configs: Sequence[PreTrainedConfig], name: str = FEW) -> Iterator[None]:
    """While open, forwards of the models with these configurations use the attention `name`."""
    with ExitStack() as changes:
        for config in configs:
            changes.enter_context(replaced(config, "_attn_implementation", name))
        yield


MMAP_THRESHOLD = -3  # numbers of mallopt's parameters in glibc's malloc.h
TRIM_THRESHOLD = -1
LARGEST = 2**31 - 1  # the largest value that mallopt takes, in bytes
# Variables by which a user has decided already.
OWN_CHOICE = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(device: torch.device | str = "cpu") -> bool:
    """Let this process keep up to 2 GiB that it frees on a processor with glibc.

    False where nothing was changed.
    """
    is_glibc = torch.device(device).type == "cpu" and platform.libc_ver()[0] == "glibc"
    if not is_glibc or any(name in os.environ for name in OWN_CHOICE):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, LARGEST))
