"""What decoding by segments counts besides: segments, and the target forwards that an opinion took."""

from __future__ import annotations

from collections.abc import Collection

import torch

from gistgate.block import Acceptance, Block
from gistgate.decoding.parts import Observer
from gistgate.optional.segments.judges import SegmentJudge
from gistgate.optional.segments.rule import SegmentRule
from gistgate.request.rows import Row


class Counting:
    """Adds to every row's statistics, then lets another observer look.

    In `extra`: `segments` that were judged, `segments_passed` by opinion or shortcut, `segments_kept` in the text
    (those whose tokens all matched, or passed one by one, as well), and what the opinion notes. Forwards of the target
    that an opinion took count as all others do.
    """

    def __init__(self, rule: SegmentRule, judge: SegmentJudge, then: Observer | None = None) -> None:
        self.rule, self.judge, self.then = rule, judge, then
        self.layers: Collection[str] = () if then is None else then.layers
        self.wants_q = then is not None and then.wants_q

    def before(self, observer: Observer) -> Counting:
        """The same counts, behind which another observer looks."""
        return Counting(self.rule, self.judge, observer)

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        judged = self.judge.lengths if block.draft_ids.shape[1] else []  # a plain round judges nothing
        spent = getattr(self.judge.opinion, "spent", [0] * len(rows))
        notes = getattr(self.judge.opinion, "notes", [None] * len(rows))
        if any(judged):
            passed = self.rule.passes(block, self.judge.opinions[:, None]).all(-1)
            told = torch.stack([passed.long(), acceptance.length], dim=1).tolist()
            for row, length, (whole, kept), forwards, note in zip(rows, judged, told, spent, notes, strict=True):
                if not length:
                    continue
                row.statistics.forwards += forwards
                counts = {"segments": 1, "segments_passed": whole, "segments_kept": int(kept >= length)}
                for name, count in (counts if note is None else {**counts, note: 1}).items():
                    row.statistics.extra[name] = row.statistics.extra.get(name, 0.0) + count
        if self.then is not None:
            self.then(block, acceptance, rows)
