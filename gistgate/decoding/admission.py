"""How waiting rows come into the batch of a session: what both models have to know of them is read first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from gistgate.decoding.verifier import Verifier
from gistgate.drafters.base import Drafter
from gistgate.forward.cache import RowCache
from gistgate.request.rows import Memory, Row, spend

FEWEST = 8
"""Rows come in when at least one in so many slots is free: every admission costs a forward and a copy of the caches."""
NOTHING = Memory([], RowCache([]), RowCache([]))


@dataclass(frozen=True)
class Start:
    """A row that waits, and what is known of its text."""

    row: Row
    memory: Memory = NOTHING
    kept: int = 0
    """Tokens of the memory's text that the row's text begins with."""

    def known(self, cache: RowCache) -> int:
        """Tokens that need no reading; the last one is read again, because its row predicts the next one."""
        return min(self.kept, len(self.row.text) - 1, cache.length)


class Waiting:
    """The rows of a request that have no slot yet, in the order in which they get one."""

    def __init__(self, starts: Iterable[Start], slots: int) -> None:
        """`starts` is asked for a row only when there is a slot for it."""
        self._starts, self.slots = iter(starts), slots

    def next(self, live: int) -> list[Start]:
        """The rows that come in beside `live` others; none while too few slots are free."""
        free = self.slots - live
        if not free or (live and free * FEWEST < self.slots):
            return []
        return list(islice(self._starts, free))


def continued(
    memories: Iterable[Memory],
    continuations: Sequence[tuple[int, Sequence[int]]],
    prompt_lengths: Sequence[int],
    seeds: Sequence[int] | None,
) -> Iterator[Start]:
    """The rows of `Decoder.resume`, each made when it is asked for."""
    told = zip(memories, continuations, prompt_lengths, strict=True)
    for index, (memory, (kept, added), length) in enumerate(told):
        row = Row(index, [*memory.text[:kept], *added], length, seeds[index] if seeds else index)
        row.reasons = [0] * len(row.answer)
        yield Start(row, memory, kept)


def admit(starts: Sequence[Start], live: int, verifier: Verifier, drafter: Drafter | None) -> None:
    """Make room for rows behind the `live` ones of a batch.

    The first rows of a batch are read together with their first draft. Later ones are read up to their last token
    beforehand, so that the others do not wait for it in padding; the time is theirs.
    """
    begun = perf_counter()
    texts = [start.row.text for start in starts]
    targets, drafts = [start.memory.target for start in starts], [start.memory.draft for start in starts]
    known = [start.known(cache) for start, cache in zip(starts, targets, strict=True)]
    if live:
        verifier.reader.admit(texts, targets, known)
    else:
        verifier.begin(targets, known)
    between = perf_counter()
    if drafter is not None:
        known = [start.known(cache) for start, cache in zip(starts, drafts, strict=True)]
        if live:
            drafter.admit(live, texts, drafts, known)
        else:
            drafter.restore(drafts, known)
    ended = perf_counter()
    spend([start.row for start in starts], verify=between - begun, draft=ended - between, total=ended - begun)
