"""A gate and an observer for tests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block


class HalfGate:
    """Finds every second token id harmless, judging by the id alone."""

    layers: frozenset[str] = frozenset({"post"})
    wants_q = False

    def __call__(self, block: Block) -> Tensor:
        assert block.hidden["post"].shape[:2] == block.logits.shape[:2]
        return torch.where(block.draft_ids % 2 == 0, 0.99, 0.01)


class Markers:
    """What a decoder asks of a tokenizer: think markers, and a prompt in front of a second reading."""

    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def get_vocab(self) -> dict[str, int]:
        return {"<think>": 1, "</think>": 2}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [3, 4, 5]


class Watch:
    """Keeps every block with its verdict and the texts before it."""

    def __init__(self, layers: Collection[str] = (), wants_q: bool = False) -> None:
        self.layers, self.wants_q = layers, wants_q
        self.seen: list[tuple[Block, Acceptance, list[list[int]]]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: Any) -> None:
        self.seen.append((block, acceptance, [list(row.text) for row in rows]))
