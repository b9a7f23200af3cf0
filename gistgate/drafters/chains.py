"""What the drafters share that read their proposals off texts and keep no key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar

import torch

from gistgate.drafters.base import Draft
from gistgate.forward.cache import RowCache


class TextDrafter:
    """The common case: no draft probabilities, nothing to hand out or take back, nothing remembered of a batch."""

    gives_q: ClassVar[bool] = False

    def start(self, batch: int) -> None: ...

    def settle(self, accepted: Sequence[int]) -> None: ...

    def select(self, rows: Sequence[int]) -> None: ...

    def read(self, texts: Sequence[Sequence[int]]) -> list[RowCache]:
        self.start(len(texts))
        return self.snapshot(range(len(texts)))

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        return [RowCache([]) for _ in rows]

    def restore(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        self.start(len(lengths))


def shared(ids: Sequence[int], vocabulary: int) -> list[int]:
    """Up to the first id that the models do not share: a prompt may hold tokens that only the tokenizer knows."""
    return list(takewhile(lambda token: token < vocabulary, ids))


def ragged(chains: Sequence[Sequence[int]]) -> Draft:
    """Chains of unequal length as a draft, K as many as the longest: the target reads no more than was found."""
    lengths = torch.tensor([len(chain) for chain in chains])
    widest = int(lengths.max())
    ids = torch.zeros(len(chains), widest, dtype=torch.long)
    for row, chain in enumerate(chains):
        ids[row, : len(chain)] = torch.tensor(chain, dtype=torch.long)
    return Draft(ids, torch.arange(widest) < lengths[:, None])
