"""vLLM's own dump of hidden states, on a processor as well; vLLM imports this module by its path.

vLLM's method `extract_hidden_states` leaves the target's states in a cache, and its connector
`ExampleHiddenStatesConnector` copies them into files with streams and events of CUDA. Without CUDA the copy is a plain
one, and finished when it returns.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)

from gistgate.core.files import save_tensors

# ---- Repair vLLM's `expand_batch_to_tokens` on CPUs, where some versions return uninitialised memory.


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


class StatesOnCpu(ExampleHiddenStatesConnector):
    """Writes the states of every finished request into a file of its own."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return None

    def _submit_async_write(self, pending: Any) -> None:
        if not self._is_tp_rank_zero:
            return
        blocks = torch.tensor(pending.block_ids)[:, None] * self._block_size
        slots = (blocks + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        save_tensors(pending.filename, {"hidden_states": states.contiguous(), "token_ids": pending.token_ids})
        self._req_copy_events[pending.req_id] = Finished()


class Finished:
    """What a connector asks whether a copy has come to its end."""

    def query(self) -> bool:
        return True
