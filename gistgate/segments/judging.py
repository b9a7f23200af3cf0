"""Segments accepted or refused as a whole (arXiv 2602.03708), by probes or as SpecReason (arXiv
2504.07891), RSD (2501.19324) and Lookahead Reasoning (2506.19830) do, each an opinion on the
draft's segment.

Axis letters: B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.block import Acceptance, Block
from gistgate.core.reader import Reader, context_of, left_padded
from gistgate.core.request import Row
from gistgate.core.rule import Rule, State, own_token
from gistgate.core.session import Observer
from gistgate.core.utils import Amount, PositiveShare, UserError
from gistgate.segments.probes import Probe
from gistgate.segments.writing import SegmentDrafter, SegmentWriter

NO_SEGMENT = -1.0  # in place of an opinion where there is no finished segment; 0 is an opinion
GRID = (0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


@dataclass(frozen=True)
class SegmentRule(
    Rule, id="segment", knob="threshold", looser="down", needs=frozenset({"gate"}), grid=GRID
):
    """Accept a segment whose opinion reaches a threshold: the form that can be certified."""

    threshold: Amount = (
        0.9  # least opinion; 1 leaves refused segments to a token gate, above 1 refuses all
    )
    shortcut: Literal["none", "top2"] = (
        "none"  # top2: passes when all its tokens are the target's two most probable
    )
    # of a refused segment the tokens up to the first refused one stay; False drops all of it
    partial: bool = True
    ratio: PositiveShare = (
        1.0  # in a refused segment a token passes with p(x) / p(t*) of at least this; 1 is strict
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio < 1 and not self.partial:
            raise UserError(
                "segment: ratio lets tokens of a refused segment stay, partial=False none. Leave"
                " one away."
            )

    @property
    def superset(self) -> bool:  # type: ignore[override]
        return self.partial

    def accept(self, block: Block, state: State) -> Tensor:
        assert block.gate_probs is not None, "decoders with this rule are made by segment_decoder()"
        if not block.draft_ids.shape[1]:
            return block.valid
        stays_BK = self.passes(block, block.gate_probs)
        if self.ratio == 1:
            return stays_BK
        return stays_BK | (block.draft_logprob - block.top_logprob[:, :-1] >= math.log(self.ratio))

    def passes(self, block: Block, opinion_BK: Tensor) -> Tensor:
        """Where opinion (or one column of it) or shortcut lets tokens stay [B, K]."""
        stays_BK = self._stays(block, opinion_BK)
        if self.shortcut == "none":
            return stays_BK
        finished_B = ((opinion_BK >= 0) | ~block.valid).all(-1)
        among_B = ((block.draft_rank < 2) | ~block.valid).all(-1)
        return stays_BK | (finished_B & among_B)[:, None]

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        if self.partial or block.greedy or not block.draft_ids.shape[1]:
            return own_token(block, length_B)
        # What was refused as a whole was never tested against p token by token: p itself follows,
        # not the residual.
        tested_BK = block.valid & self.accept(block, {})[:, :1]
        return own_token(replace(block, valid=tested_BK), length_B)

    def _stays(self, block: Block, opinion_BK: Tensor) -> Tensor:
        """Where the opinion is good enough [B, K]; nowhere for NO_SEGMENT, since the threshold is
        not negative.
        """
        return opinion_BK >= self.threshold


@dataclass(frozen=True)
class SegmentDraw(
    SegmentRule, id="segment-draw", knob=None, needs=frozenset({"gate", "uniforms"}), grid=()
):
    """Accept with the opinion as probability, reproducibly for the request's seed; `threshold`
    plays no part.
    """

    def _stays(self, block: Block, opinion_BK: Tensor) -> Tensor:
        assert block.uniforms is not None
        # The first position's number also decides its strict test; the fractional part of a
        # multiple is fresh enough.
        return (block.uniforms[:, :1] * 4096.0) % 1.0 < opinion_BK


class Opinion:
    """Gives each row's segment a number in [0, 1]; rows without a finished one are not asked for
    it.
    """

    layers: frozenset[str] = frozenset()
    spent: Sequence[
        int
    ] = ()  # forwards of the target that the last call took for each row, where it takes any
    notes: Sequence[str | None] = ()  # what the last call says of each row, to be counted

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        """The opinions [B]."""
        raise NotImplementedError


class Semantic(Opinion):
    """Semantic probabilities of both models: P_t, or the ratio min(1, P_t / P_d)."""

    layers = frozenset({"post"})

    def __init__(self, target: Probe, draft: Probe | None = None) -> None:
        """With a draft probe the ratio is the opinion, without one P_t alone."""
        self.target = target.eval()
        self.draft = None if draft is None else draft.eval()

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        device = block.logits.device
        for probe in (self.target, self.draft):
            if (
                probe is not None and probe.first.weight.device != device
            ):  # a folder is read into main memory
                probe.to(device)
        target: Tensor = self.target(block.hidden["post"][:, :-1].to(device), block.valid).sigmoid()
        if self.draft is None:
            return target
        draft: Tensor = self.draft(drafter.states.to(device), block.valid).sigmoid()
        return (target / draft.clamp_min(1e-6)).clamp_max(1.0)


class MeanLogprob(Opinion):
    """Control without a probe: exp of the mean of ln p(x) - ln p(t*) over the segment."""

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        gap = (block.draft_logprob - block.top_logprob[:, :-1]).masked_fill(~block.valid, 0.0)
        return (gap.sum(-1) / block.valid.sum(-1).clamp_min(1)).exp()


class StepOpinion(Opinion):
    """What the opinions below share: they look at texts, and only at those of finished segments."""

    spent: list[int]
    notes: list[str | None]

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        valid = block.valid.sum(-1).tolist()
        rows = [row for row, length in enumerate(drafter.lengths) if 0 < length == valid[row]]
        self.spent = [0] * len(valid)
        self.notes = [None] * len(valid)
        scores = torch.zeros(len(valid), device=block.logits.device)
        if rows:
            steps = [block.draft_ids[row, : valid[row]].tolist() for row in rows]
            found = self.judge(rows, [list(drafter.texts[row]) for row in rows], steps)
            scores[torch.tensor(rows, device=scores.device)] = torch.tensor(
                found, device=scores.device
            )
        return scores

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        """A number in [0, 1] for each of these rows' steps, which follow `texts`."""
        raise NotImplementedError


class Score(StepOpinion):
    """The target is asked for one digit, reading the text (its end, if too long) without a cache; a
    non-digit is 0.
    """

    QUESTION = "\nHow good is the last step, from 0 (useless) to 9 (perfect)? Score: "

    def __init__(
        self,
        target: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        question: str = QUESTION,
        expected: bool = False,
    ) -> None:
        """Ask by `question`; `expected` takes the mean digit over its probabilities, not the most
        probable one.
        """
        self.target = target
        self.expected = expected
        self.context = context_of(target.config.get_text_config()) or sys.maxsize
        self.question = tokenizer.encode(question, add_special_tokens=False)
        digits = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
        if any(len(ids) != 1 for ids in digits):
            raise UserError(
                "A score is one digit, and this tokenizer has no token for each. Choose another"
                " opinion."
            )
        self.digits = [ids[0] for ids in digits]

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        asked = [
            [*text, *step, *self.question][-self.context :]
            for text, step in zip(texts, steps, strict=True)
        ]
        z_BV = Reader(self.target, len(asked)).read(
            *left_padded(asked, self.target.device), keep=1
        )[:, -1]
        p_BV = z_BV.softmax(-1)[:, self.digits]
        best = z_BV.argmax(-1).tolist()
        mean = (p_BV * torch.arange(10, device=p_BV.device)).sum(-1) / p_BV.sum(-1).clamp_min(1e-12)
        digits = [self.digits.index(token) if token in self.digits else None for token in best]
        for row, digit in zip(rows, digits, strict=True):
            self.spent[row] = 1
            self.notes[row] = f"score_{'none' if digit is None else digit}"
        return [
            one / 9
            for one in (mean.tolist() if self.expected else (float(digit or 0) for digit in digits))
        ]


class Reward(StepOpinion):
    """A reward model reads the text up to the step's end: any sequence-classification model with
    one or two labels.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source: PreTrainedTokenizerBase,
    ) -> None:
        """Judge by `model`, which reads with `tokenizer` what `source` decodes."""
        if (labels := model.config.num_labels) > 2:
            raise UserError(
                f"A reward model has one label or two, and this has {labels}. Use another."
            )
        self.model = model.eval()
        self.tokenizer = deepcopy(tokenizer)
        self.source = source
        self.tokenizer.truncation_side = (  # the step that is judged stands at the end of a long text
            "left"
        )

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        read = [self.source.decode([*text, *step]) for text, step in zip(texts, steps, strict=True)]
        found = []
        for text in (
            read
        ):  # one at a time: what a padded row gets depends on where its model looks for the end
            inputs = self.tokenizer(
                text, return_tensors="pt", truncation=True, return_token_type_ids=False
            )
            z = self.model(**inputs.to(self.model.device)).logits[0].float()
            found.append(float(z.sigmoid()[0] if len(z) == 1 else z.softmax(-1)[1]))
        return found


class Pair(StepOpinion):
    """The target writes its own step from the same place; equal ones pass, others are compared by
    `aligned`.
    """

    def __init__(self, writer: SegmentWriter, aligned: Callable[[str, str], float]) -> None:
        """`writer` writes the target's steps; `aligned` says of two texts, own and drafted, how
        alike they are.
        """
        self.writer = writer
        self.aligned = aligned

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        own = [ids for ids, _ in self.writer.write(texts, range(len(texts)))]
        for row, ids in zip(rows, own, strict=True):
            self.spent[row] = len(ids)
        decode = self.writer.decoder.tokenizer.decode  # type: ignore[union-attr]
        said = [(decode(ids), decode(step)) for ids, step in zip(own, steps, strict=True)]
        equal = [a.lower().split() == b.lower().split() for a, b in said]
        return [
            1.0 if same else self.aligned(*pair) for same, pair in zip(equal, said, strict=True)
        ]


class SegmentJudge:
    """An opinion as the gate of a decoder, beside a token gate where one is given."""

    def __init__(
        self, opinion: Opinion, drafter: SegmentDrafter, token_gate: Any = None, risk: float = 0.1
    ) -> None:
        """Judge by `opinion`; inside refused segments a token passes where P(harm) <= `risk` for
        the token gate.
        """
        self.opinion = opinion
        self.drafter = drafter
        self.token_gate = token_gate
        self.risk = risk
        self.layers = opinion.layers | (frozenset() if token_gate is None else token_gate.layers)
        self.wants_q = token_gate is not None and token_gate.wants_q
        self.lengths: list[
            int
        ] = []  # tokens of the segment that was judged last in each row; 0 without one
        self.opinions = torch.zeros(
            0
        )  # the opinion on it [B], before the token gate spoke; NO_SEGMENT without one

    def __call__(self, block: Block) -> Tensor:
        """The opinion on each row's segment [B, K], NO_SEGMENT without one; 1 where the token gate
        is sure.
        """
        device = block.logits.device
        valid = block.valid.sum(-1).tolist()
        drafted = self.drafter.lengths if block.draft_ids.shape[1] else valid
        self.lengths = [
            length if length == most else 0 for length, most in zip(drafted, valid, strict=True)
        ]
        self.opinions = torch.full((len(valid),), NO_SEGMENT, device=device)
        if any(self.lengths):
            finished = torch.tensor(self.lengths, device=device) > 0
            self.opinions = torch.where(
                finished, self.opinion.score(block, self.drafter), NO_SEGMENT
            )
        score = self.opinions[:, None].expand(block.draft_ids.shape)
        if self.token_gate is None or not block.draft_ids.shape[1]:
            return score
        return score.masked_fill(1 - self.token_gate(block) <= self.risk, 1.0)


class Counting:
    """Adds to every row's statistics (docs/segments.md) and target forwards of opinions; then
    another looks.
    """

    def __init__(
        self, rule: SegmentRule, judge: SegmentJudge, then: Observer | None = None
    ) -> None:
        self.rule = rule
        self.judge = judge
        self.then = then
        self.layers: Collection[str] = () if then is None else then.layers
        self.wants_q = then is not None and then.wants_q

    def before(self, observer: Observer) -> Counting:
        """The same counts, behind which another observer looks."""
        return Counting(self.rule, self.judge, observer)

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        judge = self.judge
        opinion = self.judge.opinion
        if block.draft_ids.shape[1] and any(judge.lengths):  # a plain round judges nothing
            passed = self.rule.passes(block, judge.opinions[:, None]).all(-1)
            told = torch.stack([passed.long(), acceptance.length], dim=1).tolist()
            for at, (row, length, (whole, kept)) in enumerate(
                zip(rows, judge.lengths, told, strict=True)
            ):
                if not length:
                    continue
                counts = {
                    "segments": 1,
                    "segments_passed": whole,
                    "segments_kept": int(kept >= length),
                }
                if opinion.spent:
                    row.statistics.forwards += opinion.spent[at]
                if opinion.notes and (note := opinion.notes[at]):
                    counts[note] = 1
                for name, count in counts.items():
                    row.statistics.extra[name] = row.statistics.extra.get(name, 0.0) + count
        if self.then is not None:
            self.then(block, acceptance, rows)
