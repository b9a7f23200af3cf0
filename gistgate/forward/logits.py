"""Logits of the last rows of a forward, without a copy of the output layer.

Axis letters: B rows, N tokens read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def last_logits(model: PreTrainedModel, keep: int, **inputs: Any) -> Tensor:
    """Logits [B, keep, V] of the last `keep` rows in float32; `inputs` are the arguments of the model's forward."""
    with contiguous_rows(model):
        out = model(**inputs, use_cache=True, logits_to_keep=keep)
    logits: Tensor = out.logits[:, -keep:].float()
    return logits


@contextmanager
def contiguous_rows(model: PreTrainedModel) -> Iterator[None]:
    """Make the input of the model's output layer contiguous while the context is open.

    `logits_to_keep` cuts the last rows out of the states, which leaves gaps between the rows of a batch. A matrix
    product of such an input is computed as a batch of products, for which the weight is copied once per row: for half
    precision that costs more than the product itself.
    """
    handle = model.get_output_embeddings().register_forward_pre_hook(contiguous)
    try:
        yield
    finally:
        handle.remove()


def contiguous(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same arguments, the first of them contiguous."""
    return (args[0].contiguous(), *args[1:])
