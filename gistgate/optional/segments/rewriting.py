"""What follows a refused segment: the target's own one, to its end, before the draft model is trusted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gistgate.block import Draft
from gistgate.forward.cache import RowCache
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.optional.segments.drafter import SegmentDrafter


@dataclass
class Own:
    """A segment that the target writes itself."""

    begin: int
    """Where in its row's text it begins."""
    seen: int
    """Tokens of the text in which its end was looked for."""


class RewritingDrafter(SegmentDrafter):
    """A segment drafter that offers nothing to be judged until the target has ended the segment it refused.

    Meanwhile it drafts all the same, and the token rule decides alone: with the strict one the target's own segment
    costs fewer forwards than tokens. A segment cut by the limit counts as refused. A text that is resumed in the
    middle of such a segment goes on with a judged one.
    """

    def __init__(self, model: PreTrainedModel, boundaries: Boundaries) -> None:
        self.own: list[Own | None] = []
        """The segment each row's target is writing; None where the next one may be judged."""
        self._behind: list[int] = []
        super().__init__(model, boundaries)

    def start(self, batch: int) -> None:
        super().start(batch)
        self.own, self._behind = [None] * batch, [0] * batch

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **request: Any) -> Draft:
        self.own = [self._unfinished(own, text) for own, text in zip(self.own, texts, strict=True)]
        self._behind = [len(text) for text in texts]
        draft = super().propose(texts, num_draft, **request)
        self.lengths = [0 if own else length for own, length in zip(self.own, self.lengths, strict=True)]
        return draft

    def keep(self, accepted: Sequence[int]) -> None:
        super().keep(accepted)
        for row, kept in enumerate(accepted):
            whole = 0 < self.lengths[row] <= kept
            if self.own[row] is None and not whole:
                self.own[row] = Own(self._behind[row], self._behind[row])

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.own = [self.own[row] for row in rows]

    def admit(
        self, present: int, texts: Sequence[Sequence[int]], caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        super().admit(present, texts, caches, lengths)
        self.own += [None] * len(texts)
        self._behind += [0] * len(texts)

    def _unfinished(self, own: Own | None, text: Sequence[int]) -> Own | None:
        """The same segment, or None where the text has come to its end since."""
        if own is None:
            return None
        ends = (self.boundaries.ends(text[own.begin : at]) for at in range(own.seen + 1, len(text) + 1))
        return None if any(ends) else Own(own.begin, len(text))
