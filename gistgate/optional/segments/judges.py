"""What stands in the gate's place when segments are judged: one number per row, at all its positions.

A segment that the length limit cut is no segment and gets NO_SEGMENT.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.decoding.parts import GateLike
from gistgate.optional.segments.drafter import SegmentDrafter
from gistgate.optional.segments.probes import Probe
from gistgate.optional.segments.rule import NO_SEGMENT


class Opinion(Protocol):
    """Gives each row's segment a number in [0, 1]; rows without a finished one are not asked for it.

    One that takes forwards of the target has `spent` as well, how many the last call took for each row, and one that
    leaves `notes` on rows has them counted by name.
    """

    layers: frozenset[str]
    wants_q: bool

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        """[B]"""
        ...


class Semantic:
    """Semantic probabilities of both models: P_t, or the ratio min(1, P_t / P_d)."""

    layers = frozenset({"post"})
    wants_q = False

    def __init__(self, target: Probe, draft: Probe | None = None) -> None:
        """With a draft probe the ratio is the opinion, without one P_t alone."""
        self.target, self.draft = target.eval(), None if draft is None else draft.eval()

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        self._follow(block.logits.device)
        target: Tensor = self.target(block.hidden["post"][:, :-1].to(block.logits.device), block.valid).sigmoid()
        if self.draft is None:
            return target
        draft: Tensor = self.draft(drafter.states.to(target.device), block.valid).sigmoid()
        return (target / draft.clamp_min(1e-6)).clamp_max(1.0)

    def _follow(self, device: torch.device) -> None:
        for probe in (self.target, self.draft):
            if probe is not None and probe.first.weight.device != device:  # a probe folder is read into main memory
                probe.to(device)


class MeanLogprob:
    """Control without a probe: exp of the mean of ln p(x) - ln p(t*) over the segment."""

    layers: frozenset[str] = frozenset()
    wants_q = False

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        gap = (block.draft_logprob - block.top_logprob[:, :-1]).masked_fill(~block.valid, 0.0)
        return (gap.sum(-1) / block.valid.sum(-1).clamp_min(1)).exp()


class Constant:
    """Control: every segment is as good as the other."""

    layers: frozenset[str] = frozenset()
    wants_q = False

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        return torch.full(block.draft_ids.shape[:1], self.rate, device=block.logits.device)


class SegmentJudge:
    """An opinion as the gate of a decoder, beside a token gate where one is given."""

    def __init__(
        self, opinion: Opinion, drafter: SegmentDrafter, token_gate: GateLike | None = None, risk: float = 0.1
    ) -> None:
        """Judge by `opinion`; inside refused segments a token passes where P(harm) <= `risk` for the token gate."""
        self.opinion, self.drafter, self.token_gate, self.risk = opinion, drafter, token_gate, risk
        self.layers = opinion.layers | (frozenset() if token_gate is None else token_gate.layers)
        self.wants_q = opinion.wants_q or (token_gate is not None and token_gate.wants_q)
        self.lengths: list[int] = []
        """Tokens of the segment that was judged last in each row; 0 without one."""
        self.opinions = torch.zeros(0)
        """The opinion on it [B], before the token gate spoke; NO_SEGMENT without one."""

    def __call__(self, block: Block) -> Tensor:
        """The opinion on each row's segment [B, K], NO_SEGMENT without one; 1 where the token gate is sure."""
        device = block.logits.device
        valid = block.valid.sum(-1).tolist()
        drafted = self.drafter.lengths if block.draft_ids.shape[1] else valid
        self.lengths = [length if length == most else 0 for length, most in zip(drafted, valid, strict=True)]
        self.opinions = torch.full((len(valid),), NO_SEGMENT, device=device)
        if any(self.lengths):
            finished = torch.tensor(self.lengths, device=device) > 0
            self.opinions = torch.where(finished, self.opinion.score(block, self.drafter), NO_SEGMENT)
        score = self.opinions[:, None].expand(block.draft_ids.shape)
        if self.token_gate is None or not block.draft_ids.shape[1]:
            return score
        return score.masked_fill(1 - self.token_gate(block) <= self.risk, 1.0)
