"""A gate and observers for tests, and answers that have begun already."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation


class HalfGate:
    """Finds every second token id harmless, judging by the id alone."""

    layers: frozenset[str] = frozenset({"post"})
    wants_q = False

    def __call__(self, block: Block) -> Tensor:
        assert block.hidden["post"].shape[:2] == block.logits.shape[:2]
        return torch.where(block.draft_ids % 2 == 0, 0.99, 0.01)


class Markers:
    """What a decoder asks of a tokenizer: think markers, and a prompt in front of a second
    reading.
    """

    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def get_vocab(self) -> dict[str, int]:
        return {"<think>": 1, "</think>": 2}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [3, 4, 5]


class Watch:
    """Keeps every block with its verdict and the texts before it."""

    def __init__(self, layers: Collection[str] = (), wants_q: bool = False) -> None:
        self.layers = layers
        self.wants_q = wants_q
        self.seen: list[tuple[Block, Acceptance, list[list[int]]]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: Any) -> None:
        self.seen.append((block, acceptance, [list(row.text) for row in rows]))


@contextmanager
def head_inputs(model: Any) -> Iterator[list[Tensor]]:
    """The states [B, N, D] that the output layer of `model` reads while the context is open, one
    for each call.
    """
    seen: list[Tensor] = []
    handle = model.get_output_embeddings().register_forward_hook(
        lambda _module, args, _out: seen.append(args[0])
    )
    try:
        yield seen
    finally:
        handle.remove()


def in_one_piece(states_BND: Tensor) -> bool:
    """Whether states have the strides of a new tensor.

    `is_contiguous` ignores the strides of axes of size one, at which PyTorch's choice of the
    product looks too.
    """
    _, num, width = states_BND.shape
    return states_BND.stride() == (num * width, width, 1)


def continued(
    decoder: Decoder, texts: Sequence[Sequence[int]], max_new_tokens: int, **request: Any
) -> list[Generation]:
    """What `decoder` writes behind `texts`, whose last token counts as the first of the answer."""
    whole = [(len(text), []) for text in texts]
    begun = [len(text) - 1 for text in texts]
    rows = decoder.resume(
        decoder.remember(texts),
        whole,
        begun,
        max_new_tokens=max_new_tokens + 1,
        remember=False,
        **request,
    )
    return [
        Generation(answer.ids[1:], answer.reasons[1:], answer.finish, answer.statistics)
        for answer, _ in rows
    ]
