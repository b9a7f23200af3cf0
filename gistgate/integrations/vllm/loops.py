"""The loop guard on the device: loops are easy to draft, so broken output would look fastest.

It closes as `gistgate.optional.guards.loop.LoopGuard` does, by the period of the text: a period that stands `repeats`
times closes a request's gate for `window` tokens, if it has loose tokens since the last alarm. Tokens written in steps
without drafts are seen only when they stand right before a draft.

Axis letters: S slots, B requests, L remembered tokens, E tokens looked at, P periods.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceLoopGuard:
    """Remembers the last tokens of each slot; nothing waits for the host."""

    def __init__(self, slots: int, device: torch.device, period: int = 64, repeats: int = 4, window: int = 128) -> None:
        self.period, self.repeats, self.window = period, repeats, window
        self.tail_SL = torch.full((slots, period * repeats), -1, dtype=torch.long, device=device)
        self.closed_S = torch.zeros(slots, dtype=torch.long, device=device)
        """Tokens for which each slot stays closed."""
        self.loose_S = torch.zeros(slots, dtype=torch.bool, device=device)

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.tail_SL[slot], self.closed_S[slot], self.loose_S[slot] = -1, 0, False

    def closed(self, slots_B: Tensor) -> Tensor:
        """Requests whose gate is closed [B]."""
        return self.closed_S[slots_B] > 0

    def saw(self, slots_B: Tensor, read_B: Tensor | None, written_BR: Tensor, loose_B: Tensor) -> None:
        """Take note of a round: the token before the draft, what was written (-1 behind its end), if loosely."""
        tail_BL, written_BR = self.tail_SL[slots_B], written_BR.long()
        if read_B is not None:  # a step without drafts wrote it, unless it is known
            fresh_B = torch.where(read_B.long() == tail_BL[:, -1], -1, read_B.long())
            written_BR = torch.cat([fresh_B[:, None], written_BR], dim=1)
        text_BE = torch.cat([tail_BL, written_BR], dim=1)
        text_BE = text_BE.gather(1, (text_BE >= 0).int().argsort(dim=1, stable=True))
        new_B = (written_BR >= 0).sum(1)
        loose_B = loose_B | self.loose_S[slots_B]
        alarm_B = self.loops(text_BE, new_B) & loose_B
        self.tail_SL[slots_B] = text_BE[:, -tail_BL.shape[1] :]
        self.loose_S[slots_B] = loose_B & ~alarm_B
        left_B = (self.closed_S[slots_B] - new_B).clamp_min(0)
        self.closed_S[slots_B] = torch.where(alarm_B, self.window, left_B)

    def loops(self, text_BE: Tensor, new_B: Tensor) -> Tensor:
        """Whether the text was a loop at one of its last `new_B` ends [B]; -1 is no token."""
        size = text_BE.shape[1]
        at_E = torch.arange(size, device=text_BE.device)
        period_P1 = torch.arange(1, self.period + 1, device=text_BE.device)[:, None]
        before_PE = at_E - period_P1
        earlier_BPE = text_BE[:, before_PE.clamp_min(0)]
        same_BPE = (earlier_BPE == text_BE[:, None]) & (before_PE >= 0) & (earlier_BPE >= 0)
        broken_BPE = torch.where(same_BPE, -1, at_E).cummax(-1).values
        stands_BPE = at_E - broken_BPE >= period_P1 * (self.repeats - 1)
        is_new_BE = at_E >= size - new_B[:, None]
        return (stands_BPE.any(1) & is_new_BE).any(1)
