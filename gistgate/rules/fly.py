"""FLy: tolerate a mismatch where the target is undecided and then agrees with the draft (arXiv 2511.22972)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import LooseRule, State


@dataclass(frozen=True)
class Fly(LooseRule):
    """Entropy gate and deferred window, in the form of the vLLM port unless set otherwise.

    Presets: `fly-paper` (entropy of the whole vocabulary, normalised), `fly-amd` (five following matches,
    for greedy requests; AMD's code samples in another way than this rule).
    """

    theta: float = 0.3
    """Entropy that counts as undecided: nats for "top3", share of ln V for "normalised"; above ln 3 (1) strict."""
    window: int = 6
    """Matches that have to follow the mismatch, in tokens."""
    strict_window: bool = True
    """True: the window must fit the block, so the last `window` positions are strict. False: it is cut at the end."""
    entropy: Literal["top3", "normalised"] = "top3"
    """Which entropy theta is compared with."""
    p_min: float = 0.0
    """Smallest target probability of a tolerated token; the published rule has no floor."""
    id: ClassVar[str] = "fly"
    knob: ClassVar[str | None] = "theta"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (1.09, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"window": 0},
        {"window": 2},
        {"window": 2, "strict_window": False},
    )

    def __post_init__(self) -> None:
        if self.window < 0 or self.entropy not in ("top3", "normalised") or not 0 <= self.p_min < 1:
            raise UserError(
                f"fly: window {self.window}, entropy '{self.entropy}', p_min {self.p_min} do not fit: the window is "
                "0 or more tokens, the entropy 'top3' or 'normalised', the floor in [0, 1)."
            )

    def accept(self, block: Block, state: State) -> Tensor:
        # accept(j)  <=>  m_j  or  (ent(p_j) >= theta  and  m_{j+1} .. m_{j+W} all hold)
        m_BK = block.strict
        undecided_BK = self.uncertainty(block)[:, :-1] >= self.theta
        # Behind the draft's end a window counts as failed (strict windows) or as held (windows cut at the end).
        follows_BK = m_BK if self.strict_window else m_BK | ~block.valid
        padded = F.pad(follows_BK, (0, self.window + 1), value=not self.strict_window)
        agrees_BK = padded.unfold(-1, self.window + 1, 1)[:, :-1, 1:].all(-1)
        probable_BK = block.draft_logprob >= (math.log(self.p_min) if self.p_min else -torch.inf)
        return m_BK | (undecided_BK & agrees_BK & probable_BK)

    def uncertainty(self, block: Block) -> Tensor:
        """ent(p) of every row [B, K + 1], in the unit of theta."""
        if self.entropy == "top3":
            return block.entropy3
        return block.entropy / math.log(block.logits.shape[-1])
