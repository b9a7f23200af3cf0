"""Loops in the answers of a server, found on the device: they are easy to draft, so broken output
looks fastest.

Axis letters: B requests, R tokens of a round, S slots of remembered requests, L tokens of a slot
    that are kept, E = L + R ends of a text, P periods.
"""

import torch
from torch import Tensor


class DeviceLoopGuard:
    """Remembers the last tokens of each slot, and closes a slot whose text began to repeat itself
    with a loose token in it.
    """

    period = 64
    """Longest period that is looked for, in tokens."""
    repeats = 4
    """Times a period has to stand in a row."""
    window = 128
    """Tokens for which a slot stays closed."""

    def __init__(
        self,
        slots: int,
        device: torch.device,
    ) -> None:
        length = self.period * self.repeats
        self.tail_SL = torch.full((slots, length), -1, dtype=torch.long, device=device)
        self.closed_S = torch.zeros(slots, dtype=torch.long, device=device)
        """Tokens for which each slot stays closed."""
        self.loose_S = self.closed_S.bool()

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.tail_SL[slot] = -1
        self.closed_S[slot] = 0
        self.loose_S[slot] = False

    def saw(
        self,
        slots_B: Tensor,
        read_B: Tensor,
        written_BR: Tensor,
        loose_B: Tensor,
    ) -> None:
        """Take note of a round: the token before the draft, what was written (-1 behind its end),
        if loosely.
        """
        tail_BL = self.tail_SL[slots_B]
        # A step without drafts wrote the token before the draft, unless it is known.
        fresh_B = read_B.long().masked_fill(read_B == tail_BL[:, -1], -1)
        written_BR = torch.cat([fresh_B[:, None], written_BR.long()], 1)
        text_BE = torch.cat([tail_BL, written_BR], 1)
        text_BE = text_BE.gather(1, (text_BE >= 0).int().argsort(dim=1, stable=True))
        new_B = (written_BR >= 0).sum(1)
        loose_B = loose_B | self.loose_S[slots_B]
        alarm_B = self.loops(text_BE, new_B) & loose_B
        self.tail_SL[slots_B] = text_BE[:, -tail_BL.shape[1] :]
        self.loose_S[slots_B] = loose_B & ~alarm_B
        left_B = (self.closed_S[slots_B] - new_B).clamp_min(0)
        self.closed_S[slots_B] = left_B.masked_fill(alarm_B, self.window)

    def loops(
        self,
        text_BE: Tensor,
        new_B: Tensor,
    ) -> Tensor:
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
