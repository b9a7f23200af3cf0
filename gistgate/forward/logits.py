"""Logits of the last rows of a forward, without a copy of the output layer.

Axis letters: B rows, N tokens read, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


def last_logits(model: PreTrainedModel, keep: int, **inputs: Any) -> Tensor:
    """Logits [B, keep, V] of the last `keep` rows in float32; `inputs` are the arguments of the model's forward."""
    is_cut = inputs["input_ids"].shape[1] > keep
    with contiguous_rows(model) if is_cut else nullcontext():
        out = model(**inputs, use_cache=True, logits_to_keep=keep)
    logits: Tensor = out.logits[:, -keep:].float()
    return logits


@contextmanager
def contiguous_rows(model: PreTrainedModel) -> Iterator[None]:
    """Hand the model's output layer its input in one piece while the context is open.

    `logits_to_keep` cuts the last rows out of the states, which leaves gaps between the rows of a batch. A matrix
    product of such an input is computed as a batch of products, for which the weight is copied once per row: for half
    precision that costs more than the product itself.
    """
    handle = model.get_output_embeddings().register_forward_pre_hook(in_one_piece)
    try:
        yield
    finally:
        handle.remove()


def in_one_piece(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same arguments, the first of them with the strides of a new tensor.

    `Tensor.contiguous` keeps the stride of a cut-out whose only row is the first of several, and PyTorch's choice of
    the product looks at that stride too.
    """
    rows = args[0].contiguous()
    return (rows.view(-1, rows.shape[-1]).view(rows.shape), *args[1:])
