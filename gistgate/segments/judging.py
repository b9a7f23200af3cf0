"""Segments accepted or refused as a whole (arXiv 2602.03708), by an opinion on the draft's
segment: that of probes, of token probabilities, or of the target that is asked (SpecReason, arXiv
2504.07891).

Axis letters: B rows, K drafted tokens, V vocabulary.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import context_of
from gistgate.core.block import Acceptance, Block
from gistgate.core.reader import Reader, left_padded
from gistgate.core.request import Row
from gistgate.core.rule import Rule
from gistgate.core.utils import Amount, UserError
from gistgate.segments.probes import Probe
from gistgate.segments.writing import SegmentDrafter

NO_SEGMENT = -1.0
"""In place of an opinion where there is no finished segment; 0 is an opinion."""
GRID = (0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


@dataclass(frozen=True)
class SegmentRule(
    Rule, id="segment", knob="threshold", looser="down", needs=frozenset({"gate"}), grid=GRID
):
    """Accept a segment whose opinion reaches a threshold: the form that can be certified.

    Of a refused segment the tokens up to the first mismatch stay.
    """

    threshold: Amount = 0.9
    """Least opinion; 1 leaves refused segments to a token gate, above 1 refuses all."""
    shortcut: Literal["none", "top2"] = "none"
    """top2: passes when all its tokens are the target's two most probable."""

    def accept(self, block: Block) -> Tensor:
        stays_BK = self.passes(block)
        if self.shortcut == "none":
            return stays_BK
        finished_B = ((block.fine >= 0) | ~block.valid).all(-1)
        among_B = ((block.draft_rank < 2) | ~block.valid).all(-1)
        return stays_BK | (finished_B & among_B)[:, None]

    def passes(self, block: Block) -> Tensor:
        """Where the opinion is good enough [B, K]; nowhere for NO_SEGMENT, since the threshold is
        not negative.
        """
        return block.fine >= self.threshold


@dataclass(frozen=True)
class SegmentDraw(
    SegmentRule, id="segment-draw", knob=None, needs=frozenset({"gate", "uniforms"}), grid=()
):
    """Accept with the opinion as probability, reproducibly for the request's seed; `threshold`
    plays no part.
    """

    def passes(self, block: Block) -> Tensor:
        return block.second_tests[:, :1] < block.fine


class Opinion:
    """Gives each row's segment a number in [0, 1]; rows without a finished one are not asked for
    it.
    """

    layers: Collection[str] = ()

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        """The opinions [B]."""
        raise NotImplementedError


class Semantic(Opinion):
    """Semantic probabilities of both models: P_t, or the ratio min(1, P_t / P_d)."""

    layers = ("post",)

    def __init__(self, target: Probe, draft: Probe | None = None) -> None:
        """With a draft probe the ratio is the opinion, without one P_t alone."""
        self.target = target.eval()
        self.draft = None if draft is None else draft.eval()

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        target = probability(self.target, block.hidden["post"][:, :-1], block)
        if self.draft is None:
            return target
        draft = probability(self.draft, drafter.states, block)
        return (target / draft.clamp_min(1e-6)).clamp_max(1.0)


def probability(probe: Probe, states: Tensor, block: Block) -> Tensor:
    """What a probe makes of the states [B, K, D] of a block's segments [B], where the block
    lies.
    """
    device = block.logits.device
    logits: Tensor = probe.to(device)(states.to(device), block.valid)
    return logits.sigmoid()


class MeanLogprob(Opinion):
    """Control without a probe: exp of the mean of ln p(x) - ln p(t*) over the segment."""

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        gap = block.log_ratio.masked_fill(~block.valid, 0.0)
        return (gap.sum(-1) / block.valid.sum(-1).clamp_min(1)).exp()


class Score(Opinion):
    """The target is asked for one digit, reading the text (its end, if too long) without a cache; a
    non-digit is 0. As an observer it counts its forwards and digits.
    """

    wants_q = False
    QUESTION = "\nHow good is the last step, from 0 (useless) to 9 (perfect)? Score: "

    def __init__(self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.target = target
        self.context = context_of(target.config.get_text_config()) or sys.maxsize
        self.question = tokenizer.encode(self.QUESTION, add_special_tokens=False)
        self.digits: dict[int, int] = {}
        """The digit of each token that is one."""
        for digit in range(10):
            ids = tokenizer.encode(str(digit), add_special_tokens=False)
            if len(ids) != 1:
                raise UserError(
                    "A score is one digit, and this tokenizer has no token for each. Choose another"
                    " opinion."
                )
            self.digits[ids[0]] = digit
        self.found: dict[int, int | None] = {}
        """What was found for each row of the round that was asked about; None is no digit."""

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        scores = torch.zeros(len(block.valid), device=block.logits.device)
        questions = {}
        lengths = zip(drafter.lengths, block.valid.sum(-1).tolist())
        for row, (length, valid) in enumerate(lengths):
            if 0 < length == valid:
                step = block.draft_ids[row, :length].tolist()
                text = [*drafter.texts[row], *step, *self.question]
                questions[row] = text[-self.context :]
        if questions:
            ids, valid = left_padded([*questions.values()], self.target.device)
            z_BV = Reader(self.target, len(questions)).read(ids, valid, keep=1)[:, -1]
            for row, token in zip(questions, z_BV.argmax(-1).tolist()):
                self.found[row] = self.digits.get(token)
                scores[row] = (self.found[row] or 0) / 9
        return scores

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        """Count, as an observer, what the last call took."""
        for number, digit in self.found.items():
            statistics = rows[number].statistics
            statistics.forwards += 1
            statistics.count(f"score_{'none' if digit is None else digit}")
        self.found = {}


class SegmentJudge:
    """An opinion as the gate of a decoder, beside a token gate where one is given."""

    def __init__(
        self,
        opinion: Opinion,
        drafter: SegmentDrafter,
        token_gate: Any = None,
        risk: float = 0.1,
    ) -> None:
        """Judge by `opinion`; inside refused segments a token passes where P(harm) <= `risk` for
        the token gate.
        """
        self.opinion = opinion
        self.drafter = drafter
        self.token_gate = token_gate
        self.risk = risk
        self.layers = {*opinion.layers, *(() if token_gate is None else token_gate.layers)}
        self.wants_q = token_gate is not None and token_gate.wants_q
        self.lengths: list[int] = []
        """Tokens of the segment that was judged last in each row; 0 without one."""
        self.opinions = torch.zeros(0)
        """The opinion on it [B], before the token gate spoke; NO_SEGMENT without one."""

    def __call__(self, block: Block) -> Tensor:
        """The opinion on each row's segment [B, K], NO_SEGMENT without one; 1 where the token gate
        is sure.
        """
        valid = block.valid.sum(-1).tolist()
        drafted = self.drafter.lengths if block.width else valid
        # A segment that its row has no room for is cut.
        pairs = zip(drafted, valid)
        self.lengths = [length if length == width else 0 for length, width in pairs]
        finished = torch.tensor(self.lengths, device=block.logits.device) > 0
        self.opinions = torch.full_like(finished, NO_SEGMENT, dtype=torch.float32)
        if any(self.lengths):
            score = self.opinion.score(block, self.drafter)
            self.opinions = torch.where(finished, score, NO_SEGMENT)
        opinion_BK = self.opinions[:, None].expand(block.draft_ids.shape)
        if self.token_gate is None or not block.width:
            return opinion_BK
        return opinion_BK.masked_fill(1 - self.token_gate(block) <= self.risk, 1.0)
