"""Attention of few new tokens on a processor: query heads in groups, which read their keys and
values where they lie.

PyTorch's fused kernel takes several times as long there, but a third less for single tokens in
float32.

Axis letters: B rows, H key/value heads, S slots, N new tokens, D width of a head, G query heads per
    key/value head.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

FUSED = "sdpa"  # names in transformers: of PyTorch's fused kernel, and of `attend_to_few`
FEW = "gistgate_few_tokens"
MOST = (
    64  # new tokens up to which two products are faster; for more the fused kernel keeps no scores
)
UNPLANNED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not that of cuDNN: it plans about a millisecond in every layer for each number of slots that is
new.
"""
SPECIAL = (
    "softcap",
    "s_aux",
    "position_bias",
)  # arguments that change scores or weights in ways unknown to `attend`


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None = None
) -> tuple[Tensor, None]:
    """Attention of query heads in groups `[B, H G, N, D]` to `[B, H, S, D]`, which are not repeated
    for it.

    A mask `[B, 1, N, S]` of numbers is added, one of truth values says what is seen; without one
    everything is. Returns `[B, N, H G, D]` and None, as transformers wants it.
    """
    batch, heads, num, width = query.shape
    kv_heads = key.shape[1]
    groups = heads // kv_heads
    grouped = (query * (width**-0.5 if scaling is None else scaling)).reshape(
        batch, kv_heads, groups * num, width
    )
    scores = (grouped @ key.transpose(2, 3)).view(batch, kv_heads, groups, num, -1)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill_(~mask[:, :, None], torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask[:, :, None]
    # At least float32, as in transformers. The smallest float64 is -inf there: padding that sees
    # nothing would be NaN.
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=wide).to(query.dtype).view(batch, kv_heads, groups * num, -1)
    out = (weights @ value).view(batch, heads, num, value.shape[-1])
    return out.transpose(1, 2).contiguous(), None


def attend_to_few(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`attend` for few new tokens; the fused kernel for many, for a causal order without a mask,
    and for the rest.
    """
    num = query.shape[2]
    is_known = not any(kwargs.get(name) is not None for name in SPECIAL)
    has_order = num == 1 or attention_mask is not None
    if is_known and has_order and num <= MOST:
        return attend(query, key, value, attention_mask, kwargs.get("scaling"))
    found: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **kwargs
    )
    return found


ALL_ATTENTION_FUNCTIONS.register(FEW, attend_to_few)
ALL_MASK_ATTENTION_FUNCTIONS.register(FEW, sdpa_mask)


def configs_of(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """The configurations by which a model's modules choose their attention, each once."""
    found = [module.config for module in model.modules() if hasattr(module, "config")]
    return list({id(config): config for config in found}.values())


def fused_on_cpu(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """The configurations that choose the fused kernel, of a model on a processor; none of one
    elsewhere.
    """
    on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
    return [
        config for config in configs_of(model) if on_cpu and config._attn_implementation == FUSED
    ]


def pays(num: int, dtype: torch.dtype) -> bool:
    """Whether two products are faster than the fused kernel for `num` new tokens in each row."""
    return num <= MOST and (num > 1 or dtype != torch.float32)


def unplanned(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While open, forwards of a model on a GPU use kernels that plan nothing; elsewhere nothing
    changes.
    """
    return sdpa_kernel(UNPLANNED) if model.device.type == "cuda" else nullcontext()


@contextmanager
def attending(configs: Sequence[PreTrainedConfig], name: str = FEW) -> Iterator[None]:
    """While open, forwards of the models with these configurations use the attention of that
    name.
    """
    kept = [(config, config._attn_implementation) for config in configs]
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, before in kept:
            config._attn_implementation = before


MMAP_THRESHOLD = -3  # numbers of mallopt's parameters in glibc's malloc.h
TRIM_THRESHOLD = -1
LARGEST = 2**31 - 1  # the largest value that mallopt takes, in bytes
OWN_CHOICE = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
)  # a user's own decisions


def keep_freed_memory(device: torch.device | str = "cpu") -> bool:
    """Let this process keep up to 2 GiB that it frees on a processor with glibc; False where
    nothing was changed.
    """
    chosen = any(name in os.environ for name in OWN_CHOICE)
    if chosen or torch.device(device).type != "cpu" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, LARGEST))
