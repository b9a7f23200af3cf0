"""A second reading of the draft: the target is asked to reconsider and reads it again (arXiv 2505.18629).

Behind the draft stand a short prompt, the last tokens of the text once more, and the draft once more. The rows of the
second copy give a milder verdict. Nothing of it stays in the cache.

Axis letters: B rows, K drafted tokens, R tokens of prompt and repeated tail, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gistgate.drafters.base import Draft
from gistgate.forward.reader import Reader, left_padded


def appendix(texts: Sequence[Sequence[int]], prompt: Sequence[int], tail: int, draft: Draft) -> tuple[Tensor, Tensor]:
    """What is read behind the draft: ids [B, R + K] and which of them count."""
    between = [[*prompt, *text[len(text) - min(tail, len(text)) :]] for text in texts]
    ids, valid = left_padded(between, draft.ids.device)
    valid = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
    return torch.cat([ids, draft.ids], dim=1), torch.cat([valid, draft.valid], dim=1)


def rows_of_copy(z: Tensor, num: int) -> Tensor:
    """The rows [B, K, V] that predict the second copy, from the last K + 1 rows of a forward that ends with it."""
    return z[:, -num - 1 : -1]


def forget(reader: Reader, valid: Tensor) -> None:
    """Take the appendix `valid [B, R + K]` out of the cache again."""
    reader.forget(valid.shape[1], valid.sum(-1).tolist())
