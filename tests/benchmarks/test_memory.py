"""Memory counts from where nothing of the decoding exists: neither slots nor requests hide behind the warm-up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from benchmarks import memory
from gistgate.decoding.engines.choice import Engine
from gistgate.decoding.engines.store import store_of
from tests.architectures import tiny_model

MB = 1_000_000


def decoder_of(temporary: int, keep: Callable[[], Any]) -> SimpleNamespace:
    """A decoder whose requests use what `keep` returns and `temporary` bytes besides."""

    def generate(prompts: list[list[int]], **_request: Any) -> list[SimpleNamespace]:
        kept = keep()
        used = torch.ones(temporary // 4)
        assert float(used[-1] + kept[-1]) == 2
        return [SimpleNamespace(ids=[1] * 5) for _ in prompts]

    return SimpleNamespace(generate=generate, block=0, engine=Engine("eager"))


@pytest.mark.parametrize("slots", [0, 120])
def test_slots_that_the_warm_up_leaves_are_counted_once(slots: int, monkeypatch: pytest.MonkeyPatch):
    """10 tokens of 6 MB: the caches take 60 MB, `slots` twice as much, the request 100 MB besides."""
    monkeypatch.setattr(memory, "per_token", lambda _model: 6 * MB)
    model = tiny_model("llama")
    store = store_of(model)

    def keep() -> torch.Tensor:
        if not slots:
            return torch.ones(60 * MB // 4)
        return store.memories.setdefault((1, 256), [torch.ones(slots * MB // 4)])[0]

    workload = SimpleNamespace(ids=[[1] * 5], request={}, pair=SimpleNamespace(target=model, draft=tiny_model("llama")))
    found = memory.beyond(workload, decoder_of(100 * MB, keep), 1)
    assert found["caches_mb"] == 60
    assert found["peak_mb"] == pytest.approx(100 + (slots or 60), abs=12)
    assert found["beyond_mb"] == pytest.approx(40 + slots if slots else 100, abs=12)


def test_pools_of_graphs_count_where_no_tensor_lies():
    segments = [
        {"segment_pool_id": (0, 0), "total_size": 100, "allocated_size": 10},
        {"segment_pool_id": (0, 3), "total_size": 50, "allocated_size": 20},
    ]
    assert memory.idle_in_pools(segments) == 30


def test_bytes_per_token():
    config = LlamaConfig(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3)
    model = tiny_model("llama")
    model.config.__dict__.update(config.__dict__)
    assert memory.per_token(model) == 2 * 3 * 2 * 4 * 4
