"""How drafters that read texts put their chains together.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from gistgate.block import Draft


def shared(ids: Sequence[int], vocabulary: int) -> list[int]:
    """The ids before the first one that the models do not share: a prompt may hold tokens of the tokenizer alone."""
    return list(takewhile(lambda token: token < vocabulary, ids))


def occurrences(text: Sequence[int], n_max: int, latest: bool = True) -> Iterator[tuple[int, int]]:
    """(n, where it goes on) of the text's last n tokens wherever they stand earlier, longer runs first.

    Of equal lengths the latest comes first, or with `latest=False` the earliest.
    """
    for length in range(min(n_max, len(text) - 1), 0, -1):
        pattern, starts = list(text[-length:]), range(len(text) - length)
        for start in reversed(starts) if latest else starts:
            if text[start] == pattern[0] and list(text[start : start + length]) == pattern:
                yield length, start + length


def ragged(chains: Sequence[Sequence[int]]) -> Draft:
    """Chains of unequal length as a draft, K as many as the longest: the target reads no more than was found."""
    lengths = torch.tensor([len(chain) for chain in chains])
    widest = int(lengths.max())
    return Draft(right_padded(chains, widest), torch.arange(widest) < lengths[:, None])


def right_padded(rows: Sequence[Sequence[int]], widest: int, filler: int = 0) -> Tensor:
    """Rows of unequal length as one tensor [B, widest] with `filler` behind them."""
    padded = [[*row, *[filler] * (widest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), widest)
