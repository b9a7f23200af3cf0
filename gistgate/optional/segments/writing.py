"""One model writing segments by itself: one token per forward, to the next boundary or to the limit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.forward.context import context_of, num_ids
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.request.rows import Row
from gistgate.rules.exact import Exact


@dataclass(frozen=True)
class Written:
    """A piece of text."""

    ids: list[int]
    finished: bool
    """False where the limit came before a boundary: that is no segment."""


class SegmentWriter:
    """Continues texts by one segment each; several may continue the same text."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        boundaries: Boundaries,
        limit: int,
        *,
        eos_ids: Collection[int] = (),
        stops: Sequence[str] = (),
    ) -> None:
        """Write at most `limit` tokens with `model`; `eos_ids` and `stops` end a segment as they end an answer."""
        self.decoder = Decoder(model, None, Exact(), 0, tokenizer=tokenizer, vocabulary=num_ids(tokenizer))
        self.boundaries, self.limit, self.eos_ids, self.stops = boundaries, limit, eos_ids, stops

    def write(
        self,
        texts: Sequence[Sequence[int]],
        behind: Sequence[int],
        sampling: Sampling | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[Written]:
        """A segment for each entry of `behind`, the number of the text that it follows; a text is read once.

        Where a text fills the context, nothing is written behind any of them.
        """
        limit = min(self.limit, self._room(texts))
        if limit < 1:
            return [Written([], finished=False) for _ in behind]
        needed = sorted(set(behind))
        memories = dict(zip(needed, self.decoder.remember([texts[index] for index in needed]), strict=True))
        lengths = [len(texts[index]) for index in behind]
        done = self.decoder.resume(
            [memories[index] for index in behind],
            [(length, []) for length in lengths],
            lengths,
            max_new_tokens=limit,
            eos_ids=self.eos_ids,
            stops=self.stops,
            sampling=sampling,
            seeds=seeds,
            is_decided=self._ended,
            remember=False,
        )
        return [Written(one.ids, one.finish != "length" or self.boundaries.ends(one.ids)) for one, _ in done]

    def _room(self, texts: Sequence[Sequence[int]]) -> int:
        """Tokens that the context leaves behind the longest of these texts."""
        context = context_of(self.decoder.target.config.get_text_config())
        return self.limit if context is None else context - max(map(len, texts), default=0)

    def _ended(self, row: Row) -> str | None:
        return "segment" if self.boundaries.ends(row.answer) else None
