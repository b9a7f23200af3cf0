"""A sliding window that no text can fill is no window: caches need not be packed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import MistralConfig, Qwen2Config

from gistgate.core.reader import WASTE, has_window


@pytest.mark.parametrize(
    ("window", "context", "expected"),
    [(4096, 32768, True), (131072, 131072, True), (262144, 131072, False), (None, 4096, False)],
)
def test_a_window_of_twice_the_context_limits_nothing(window: int | None, context: int, expected: bool) -> None:
    model: Any = SimpleNamespace(config=MistralConfig(sliding_window=window, max_position_embeddings=context))
    assert has_window(model) is expected


def test_a_window_that_is_switched_off_is_none() -> None:
    model: Any = SimpleNamespace(config=Qwen2Config(sliding_window=8, use_sliding_window=False))
    assert has_window(model) is False


def test_holes_never_make_a_cache_twice_as_long_as_its_text() -> None:
    assert WASTE < 2
