"""vLLM's own dump of hidden states without CUDA, whose streams and events its connector needs: a
plain copy, finished when it returns. vLLM imports this module by its path."""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)

from gistgate.core.files import save_tensors


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
        save_tensors(
            pending.filename, {"hidden_states": states.contiguous(), "token_ids": pending.token_ids}
        )
        self._req_copy_events[pending.req_id] = SimpleNamespace(query=lambda: True)
