"""A second reading of the draft: the target is asked to reconsider and reads it again (arXiv 2505.18629).

Behind the draft stand a short prompt, the last tokens of the text once more, and the draft once more. The rows of the
second copy give a milder verdict. Nothing of it stays in the cache.

Axis letters: B rows, K drafted tokens, R tokens of prompt and repeated tail, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gistgate.block import Block, Draft
from gistgate.decoding.parts import Parts
from gistgate.decoding.verifier import Verifier
from gistgate.forward.reader import Reader, counts_slots, left_padded
from gistgate.request.rows import Row, texts_of
from gistgate.rules.reflective import Reflection


class Rereader(Verifier):
    """Fills `Block.second`, in the forward of the first reading or in one of its own where the first one differs."""

    second: Tensor | None = None
    """The rows of the second copy [B, K, V], where both copies were read in one forward."""

    @classmethod
    def extra_tokens(cls, parts: Parts) -> int:
        asked = reflection(parts)
        return len(asked.prompt_ids) + asked.tail + 2 * parts.block

    def verify(self, rows: Sequence[Row], draft: Draft, uniforms: Tensor | None) -> Block:
        self.second = None
        block = super().verify(rows, draft, uniforms)
        if self.second is None and draft.ids.shape[1]:
            self.second = self._read_where_it_differs(block, draft, rows)
        second = block.logits[:, :-1] if self.second is None else self.sampling.logits(self.second)
        return block.having(second=second)

    def read(self, ids: Tensor, valid: Tensor | None, draft: Draft, rows: Sequence[Row]) -> Tensor:
        num = draft.ids.shape[1]
        if not num or reflection(self.parts).mode != "joint" or self._apart(rows):
            return super().read(ids, valid, draft, rows)
        more, counts = self._appendix(draft, rows)
        known = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        both, both_valid = torch.cat([ids, more], dim=1), torch.cat([known, counts], dim=1)
        z = self.reader.read(both, both_valid, num + 1 + more.shape[1])[..., : self.parts.vocabulary]
        for layer, state in self.states.items():
            self.states[layer] = state[:, : state.shape[1] - more.shape[1]]
        self._forget(counts)
        self.second = z[:, -num - 1 : -1]
        return z[:, : num + 1]

    def _read_where_it_differs(self, block: Block, draft: Draft, rows: Sequence[Row]) -> Tensor | None:
        """The rows of the second copy [B, K, V]; None where the first reading agrees with all drafts."""
        num = draft.ids.shape[1]
        differs = (block.valid & ~block.strict).any(-1).tolist()
        if not any(differs):
            return None
        for row, again in zip(rows, differs, strict=True):
            row.statistics.forwards += again
        if self._apart(rows):
            return self._each_alone(draft, rows, differs)
        ids, counts = self._appendix(draft, rows)
        z = self.reader.read(ids, counts, keep=num + 1)[..., : self.parts.vocabulary]
        self._forget(counts)
        return z[:, -num - 1 : -1]

    def _apart(self, rows: Sequence[Row]) -> bool:
        """Whether gaps in front of a second copy, where another row has a longer draft, would count as distance."""
        return len(rows) > 1 and counts_slots(self.parts.target)

    def _each_alone(self, draft: Draft, rows: Sequence[Row], differs: Sequence[bool]) -> Tensor:
        """The rows of the second copy [B, K, V], read row by row without gaps; zeros where the first reading agrees."""
        z = torch.zeros(*draft.ids.shape, self.parts.vocabulary, device=draft.ids.device)
        ids, counts = self._appendix(draft, rows)
        for place in (place for place, again in enumerate(differs) if again):
            reader, num = Reader(self.parts.target, 1), int(draft.valid[place].sum())
            reader.restore(self.reader.snapshot([place]), [self.reader.known[place]])
            read = reader.read(ids[place, counts[place]][None], None, keep=num + 1)
            z[place, :num] = read[0, :-1, : self.parts.vocabulary]
        return z

    def _appendix(self, draft: Draft, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """What is read behind the draft: ids [B, R + K] and which of them count."""
        asked = reflection(self.parts)
        between = [[*asked.prompt_ids, *text[max(0, len(text) - asked.tail) :]] for text in texts_of(rows)]
        ids, valid = left_padded(between, draft.ids.device)
        valid = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        return torch.cat([ids, draft.ids], dim=1), torch.cat([valid, draft.valid], dim=1)

    def _forget(self, valid: Tensor) -> None:
        """Take the appendix `valid [B, R + K]` out of the cache again."""
        self.reader.forget(valid.shape[1], valid.sum(-1).tolist())


def reflection(parts: Parts) -> Reflection:
    """What the rule wants to be read behind a draft."""
    assert isinstance(parts.context, Reflection)
    return parts.context
