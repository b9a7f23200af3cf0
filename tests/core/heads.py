"""What the output layer of a model is called with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def head_inputs(model: Any) -> Iterator[list[Tensor]]:
    """The states [B, N, D] that the output layer of `model` reads while the context is open, one for each call."""
    seen: list[Tensor] = []
    handle = model.get_output_embeddings().register_forward_hook(lambda _module, args, _out: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


def in_one_piece(states_BND: Tensor) -> bool:
    """Whether states have the strides of a new tensor.

    `is_contiguous` ignores the strides of axes of size one, at which PyTorch's choice of the product looks too.
    """
    _, num, width = states_BND.shape
    return states_BND.stride() == (num * width, width, 1)
