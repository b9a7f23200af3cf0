"""Repair vLLM's `expand_batch_to_tokens` on CPUs, where some versions return uninitialised memory.

Temperature, top-k and top-p of all draft rows are then random, and sampled speculation is meaningless, strict
verification included. A test on two small inputs decides, not the version.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("vllm.gistgate")


def repair() -> bool:
    """Replace the function where it is wrong; True if it was."""
    module: Any = import_module("vllm.v1.sample.rejection_sampler")
    if is_right(module.expand_batch_to_tokens):
        return False
    module.expand_batch_to_tokens = expand
    log.warning("gistgate: this vLLM expands sampling parameters wrongly on CPUs; a correct function replaces its own.")
    return True


def is_right(function: Any) -> bool:
    """Whether the function repeats each request's value for its tokens."""
    ends = torch.tensor([2, 3], dtype=torch.int32)
    for values in (torch.tensor([0.5, 2.0]), torch.tensor([5, 7], dtype=torch.int32)):
        if not torch.equal(function(values, ends, 3), values[torch.tensor([0, 0, 1])]):
            return False
    return True


def expand(x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Tensor:
    """`x [B]` repeated for each request's tokens [num_tokens], `replace_from` turned into `replace_to`."""
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return torch.where(expanded == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), expanded)
