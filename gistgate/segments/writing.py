"""Where segments end, the drafters that propose one, and a model that writes segments by itself."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import context_of, num_ids
from gistgate.core.block import Draft, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Texts
from gistgate.core.features import tap
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import RowDrafter, ragged

STYLES = {
    "blank-line": r"\n[ \t]*\n\s*$",
    "step": r"\n\s*$",
    # A point behind a digit may be a decimal point; at a sentence's end something else follows, at
    # the latest a line.
    "sentence": r"(?:(?<!\d)[.!?][\"')\]]*\s*|\n\s*)$",
}
"""What a finished segment's text ends with, by the name of the setting."""
TAIL = 6
"""Tokens in which an ending is looked for: a blank line or a closing quote may take several."""


class Boundaries:
    """Tells finished segments of one tokenizer from unfinished ones."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        style: str,
        end_ids: Collection[int] = (),
    ) -> None:
        """Take a style of STYLES or "re:" and a pattern; `end_ids`, such as eos, end a segment
        whatever they read.
        """
        if not style.startswith("re:") and style not in STYLES:
            raise UserError(
                f"There is no segment style '{style}'. Use {', '.join(STYLES)}, or 're:' and a"
                " pattern."
            )
        try:
            ending = re.compile(STYLES.get(style, style[3:]))
        except re.error as error:
            raise UserError(
                f"The segment style '{style}' is no regular expression ({error}). Correct it."
            ) from error

        @lru_cache(maxsize=1 << 16)
        def finished(tail: tuple[int, ...]) -> bool:
            text = tokenizer.decode(list(tail))
            return tail[-1] in end_ids or (bool(text.strip()) and ending.search(text) is not None)

        self._finished = finished

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a segment of these tokens is finished."""
        return bool(ids) and self._finished(tuple(ids[-TAIL:]))

    def cut(self, ids: Sequence[int]) -> list[list[int]]:
        """The tokens as segments in order; the last may be unfinished."""
        segments: list[list[int]] = [[]]
        for token in ids:
            segments[-1].append(token)
            if self.ends(segments[-1]):
                segments.append([])
        return segments if segments[-1] else segments[:-1]


class SegmentDrafter(ModelDrafter):
    """Drafts every row up to the end of its segment, K tokens at most."""

    def __init__(self, model: PreTrainedModel, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.texts: Texts = []
        """What each row's segment follows."""
        self.lengths: list[int] = []
        """Tokens of each row's finished segment; 0 where the limit came first."""
        self.states = torch.zeros(0)
        """The draft model's last states that predicted x_1 .. x_K [B, K, D]."""
        super().__init__(model)

    def propose(self, texts: Texts, num_draft: int, **request: Any) -> Draft:
        self.texts = texts
        self.lengths = [0] * len(texts)
        self._chains: list[list[int]] = [[] for _ in texts]
        self._states: list[Tensor] = []
        with tap(self.model, ["post"]) as self._seen:
            draft = super().propose(texts, num_draft, **request)
        self.states = torch.stack(self._states, 1)
        return replace(draft, valid=ragged(self._chains).valid.to(draft.ids.device))

    def _enough(self, drawn: Tensor, z_BV: Tensor) -> bool:
        """Append to the rows that still write; True once all have ended their segment."""
        self._states.append(self._seen["post"][:, -1])
        for row, token in enumerate(drawn.tolist()):
            chain = self._chains[row]
            if not self.lengths[row]:
                chain.append(token)
                if self.boundaries.ends(chain):
                    self.lengths[row] = len(chain)
        return all(self.lengths)


class RewritingDrafter(RowDrafter, SegmentDrafter):
    """Drafts, but offers nothing to be judged until the target has ended the segment it refused (or
    the limit cut).

    What it knows of a row is where in its text the segment begins that the target is writing; None:
    the next one may be judged.
    """

    new_row = NoneType

    def propose(self, texts: Texts, num_draft: int, **request: Any) -> Draft:
        draft = super().propose(texts, num_draft, **request)
        self._behind = [len(text) for text in texts]  # which grow until `keep`
        for row, text in enumerate(texts):
            begin = self.rows[row]
            if begin is not None:
                if any(map(self.boundaries.ends, self.boundaries.cut(text[begin:]))):
                    self.rows[row] = None
                else:
                    self.lengths[row] = 0
        return draft

    def keep(self, accepted: Sequence[int]) -> None:
        super().keep(accepted)
        for row, length in enumerate(accepted):
            is_whole = 0 < self.lengths[row] <= length
            if self.rows[row] is None and not is_whole:
                self.rows[row] = self._behind[row]


class SegmentWriter:
    """Continues texts by one segment each; several may continue the same text."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        boundaries: Boundaries,
        limit: int,
        **ends: Any,
    ) -> None:
        """Write at most `limit` tokens with `model`; `ends` (eos_ids, stops) end a segment as they
        end an answer.
        """
        vocabulary = num_ids(tokenizer)
        self.decoder = Decoder(model, None, Exact(), tokenizer=tokenizer, vocabulary=vocabulary)
        self.boundaries = boundaries
        self.limit = limit
        self.ends = ends

    def write(
        self,
        texts: Texts,
        behind: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
    ) -> list[tuple[list[int], bool]]:
        """A segment for each entry of `behind`, the number of its text (read once); none if one
        fills the context.

        With each goes whether it is finished; one that the limit cut is no segment.
        """
        context = context_of(self.decoder.target.config.get_text_config())
        limit = self.limit
        if context is not None:
            limit = min(limit, context - max(map(len, texts), default=0))
        if limit < 1:
            return [([], False) for _ in behind]
        numbers = sorted(set(behind))
        memories = self.decoder.remember([texts[number] for number in numbers])
        memory_of = dict(zip(numbers, memories))
        lengths = [len(texts[number]) for number in behind]
        answers = self.decoder.resume(
            [memory_of[number] for number in behind],
            [(length, []) for length in lengths],
            lengths,
            max_new_tokens=limit,
            sampling=sampling,
            seeds=seeds,
            is_decided=lambda row: "segment" if self.boundaries.ends(row.answer) else None,
            remember=False,
            **self.ends,
        )
        return [
            (answer.ids, answer.finish != "length" or self.boundaries.ends(answer.ids))
            for answer, _ in answers
        ]
