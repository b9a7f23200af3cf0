"""Make vLLM's own test accept chosen draft tokens, and leave its tensors as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LIFT = 1e4
"""How far a forced logit lies above its row: p(x) is 1, and the number still fits float16."""


@contextmanager
def forced(logits_NV: Tensor, ids_N: Tensor, chosen_N: Tensor) -> Iterator[None]:
    """Lift the logit of the draft token in the chosen rows while the block runs.

    A copy of the logits would cost as much memory as they do, so one column is changed in place and restored. vLLM
    reads the same tensor afterwards for log-probabilities.
    """
    ids_N1 = ids_N[:, None]
    old_N1 = logits_NV.gather(-1, ids_N1)
    lifted_N1 = logits_NV.amax(-1, keepdim=True) + LIFT
    logits_NV.scatter_(-1, ids_N1, torch.where(chosen_N[:, None], lifted_N1, old_N1))
    try:
        yield
    finally:
        logits_NV.scatter_(-1, ids_N1, old_N1)


def flat(mask_BK: Tensor, place_BR: Tensor, num: int) -> Tensor:
    """A padded mask as a mask of flat rows [num]. Padding repeats rows, but its mask is False."""
    count_N = torch.zeros(num, dtype=torch.int32, device=mask_BK.device)
    places = place_BR[:, :-1].reshape(-1).clamp_max(num - 1)
    return count_N.index_add_(0, places, mask_BK.reshape(-1).int()) > 0
