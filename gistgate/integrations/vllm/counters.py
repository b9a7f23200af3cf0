"""What was drafted, accepted and accepted loosely, per request and in all; kept on the device, read on request.

Axis letters: S slots, B requests, K drafted tokens, C counters.
"""

from __future__ import annotations

import torch
from torch import Tensor

NAMES = ("blocks", "drafted", "accepted", "loose", "carried", "expected_loose", "guarded")
"""Counters: rounds with a draft, drafted tokens, accepted ones, those that the strict test refuses (greedy requests),
strict ones behind a loose one, the expected number of loose ones (sampled requests, where the native verdict cannot be
seen), and rounds in which the loop guard kept the gate closed."""


class Counters:
    """A row of counters per slot, and their sums."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots_SC = torch.zeros(slots, len(NAMES), dtype=torch.float32, device=device)
        self.total_C = torch.zeros(len(NAMES), dtype=torch.float64, device="cpu" if device.type == "mps" else device)

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.slots_SC[slot] = 0

    def add(self, slots_B: Tensor, counts_BC: Tensor) -> None:
        """Add what one round brought."""
        self.slots_SC.index_add_(0, slots_B, counts_BC.float())
        self.total_C += counts_BC.double().sum(0)

    def total(self) -> dict[str, float]:
        """All requests together; waits for the device."""
        return dict(zip(NAMES, self.total_C.tolist(), strict=True))

    def of(self, slot: int) -> dict[str, float]:
        """One request; waits for the device."""
        return dict(zip(NAMES, self.slots_SC[slot].tolist(), strict=True))


def count(
    valid_BK: Tensor, match_BK: Tensor, forced_BK: Tensor, strict_share_BK: Tensor, greedy_B: Tensor, length_B: Tensor,
    closed_B: Tensor,
) -> Tensor:  # fmt: skip
    """The counters of one round [B, C]; only what was accepted counts, `length_B` tokens of each request.

    `strict_share_BK` is the probability with which the strict test would have accepted, for sampled requests.
    """
    places_K = torch.arange(valid_BK.shape[1], device=valid_BK.device)
    stays_BK = (places_K < length_B[:, None]) & valid_BK
    greedy_B1 = greedy_B[:, None]
    loose_BK = stays_BK & ~match_BK & greedy_B1
    carried_BK = stays_BK & match_BK & greedy_B1 & (loose_BK.cumsum(1) > 0)
    # Padding may hold NaN (0 - 0 times infinity), so it is chosen away and not multiplied away.
    expected_BK = torch.where(stays_BK & forced_BK & ~greedy_B1, 1 - strict_share_BK.clamp_max(1), 0.0)
    drafted_B = valid_BK.sum(1)
    columns = (
        drafted_B > 0, drafted_B, stays_BK.sum(1), loose_BK.sum(1), carried_BK.sum(1), expected_BK.sum(1),
        closed_B & (drafted_B > 0),
    )  # fmt: skip
    return torch.stack([column.double() for column in columns], dim=-1)
