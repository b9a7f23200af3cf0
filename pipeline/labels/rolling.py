"""Rollouts by the decoder, in a batch that is kept full: where one ends, the next one comes in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from typing import Any

import torch

from gistgate.block import Sampling
from gistgate.decoding.admission import Start, Waiting
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.session import Session
from gistgate.request.rows import Generation, Memory, Row
from gistgate.request.slots import Slots
from pipeline.labels.cost import Cost
from pipeline.labels.kept_rollouts import KeptRollouts
from pipeline.labels.memories import Memories
from pipeline.labels.rollouts import Ended, Rollout, Supply, stop_of


class Roller:
    """Makes rollouts from remembered keys and values; every text is read once."""

    kept: KeptRollouts | None = None
    """Keeps those that have ended; None: an interruption loses them."""

    def __init__(self, decoder: Decoder, memories: Memories, batch_size: int, cost: Cost, **request: Any) -> None:
        """`decoder` goes on from `memories`, `batch_size` rows at a time; `cost` counts what is spent."""
        # A supply may decode as well while rollouts wait, and the drafter holds what its draft model has read.
        self.decoder = decoder.having(drafter=copy(decoder.drafter))
        self.memories, self.batch_size, self.cost = memories, batch_size, cost
        self.stop = stop_of(decoder.tokenizer, **request)

    @torch.inference_mode()
    def serve(self, supply: Supply, sampling: Sampling | None = None) -> None:
        """Make what `supply` asks for until it asks for nothing more; greedily by default."""

        def retire(_num: int) -> None:
            index, (answer, _) = session.results.popitem()  # the one that ended last
            self.cost.rolled(len(answer.ids) - coming.rollouts[index].position - 1)
            coming.end(index, answer)

        supply = supply if self.kept is None else self.kept.over(supply, sampling)
        coming = Coming(supply, self.memories, self.batch_size)
        slots = Slots(self.batch_size, retire)
        waiting = Waiting(coming, self.batch_size)
        session = Session(
            self.decoder.parts, waiting, self.stop, sampling or Sampling(), slots, is_decided=coming.is_decided
        )
        session.run()
        self.cost.use(slots.usage)


class Coming(Iterator[Start]):
    """The rows of a session that waits for a supply: it may be exhausted, and go on once a rollout has ended."""

    def __init__(self, supply: Supply, memories: Memories, ahead: int) -> None:
        """`memories` are asked for those of `ahead` rollouts at once."""
        self.supply, self.memories, self.ahead = supply, memories, ahead
        self.rollouts: list[Rollout] = []
        """Those that were taken, by the index of their row."""
        self._next: deque[Start] = deque()

    def __next__(self) -> Start:
        while self._next or self._taken():
            start = self._next.popleft()
            reason = self.is_decided(start.row)
            if reason is None:
                return start
            self.supply.end(self.rollouts[start.row.index], Ended(start.row.answer, reason))
        raise StopIteration

    def _taken(self) -> bool:
        """Take rollouts and what is remembered of their texts; False if there are none now."""
        taken = self.supply.take(self.ahead)
        memories = self.memories.of([(*one.prompt, *one.text) for one in taken])
        for rollout, memory in zip(taken, memories, strict=True):
            self._next.append(started(len(self.rollouts), rollout, memory))
            self.rollouts.append(rollout)
        return bool(taken)

    def is_decided(self, row: Row) -> str | None:
        """Why a row may end here; None: it has to go on."""
        return self.supply.decided(self.rollouts[row.index], row.answer)

    def end(self, index: int, answer: Generation) -> None:
        """Hand a finished row to the supply."""
        self.supply.end(self.rollouts[index], Ended(answer.ids, answer.finish))


def started(index: int, rollout: Rollout, memory: Memory) -> Start:
    """The row of a rollout with its forced token; the keys and values in front of that are known."""
    row = begun(index, rollout)
    row.text.append(rollout.token)
    row.reasons = [0] * len(row.answer)
    return Start(row, memory, len(rollout.prompt) + rollout.position)


def begun(index: int, rollout: Rollout) -> Row:
    """The row of a rollout without its forced token."""
    text = [*rollout.prompt, *rollout.text[: rollout.position]]
    return Row(index, text, len(rollout.prompt), rollout.seed)
