"""Rollouts: how a text goes on behind one forced token, many at once, from remembered keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.block import Sampling
from gistgate.decoding.batches import read_ahead
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Memory, Row
from gistgate.request.slots import Slots
from pipeline.labels.cost import Cost
from pipeline.labels.memories import Memories

MOST_AT_ONCE = 64
"""Most tokens that a round adds; the test for rejoining looks that far back."""
REJOINED, ANSWERED = "rejoined", "answered"
"""Finish of a rollout that came back to the words of its reference, and of one whose answer nothing can change."""

Answered = Callable[["Rollout", list[int]], bool]
"""(rollout, answer so far as token ids) -> whether what the task finds in the answer cannot change any more."""


@dataclass(frozen=True)
class Rollout:
    """One continuation to make."""

    problem: int
    """Index of its prompt."""
    prompt: list[int]
    """Prompt as token ids."""
    text: list[int]
    """The answer that the prefix is taken from, as token ids."""
    position: int
    """Tokens of the text to keep."""
    token: int
    """The token to force behind them."""
    reference: list[int]
    """The target's own answer; a rollout that rejoins it may stop early."""
    seed: int = 0


@dataclass(frozen=True)
class Ended:
    """A rollout that has come to its end, or as far as its outcome needs."""

    ids: list[int]
    """The whole answer, the kept prefix and the forced token included, as token ids."""
    finish: str
    """As of `gistgate.request.rows.Generation`, or REJOINED, or ANSWERED."""


class Roller:
    """Makes rollouts in batches that are as full as possible; every text is read once."""

    def __init__(self, decoder: Decoder, memories: Memories, batch_size: int, cost: Cost, **request: Any) -> None:
        """`decoder` goes on from `memories`, `batch_size` rows at a time; `cost` counts what is spent."""
        self.decoder, self.memories, self.batch_size = decoder, memories, batch_size
        self.cost, self.request = cost, request

    def run(
        self,
        rollouts: Sequence[Rollout],
        sampling: Sampling | None = None,
        rejoin: int | None = None,
        answered: Answered | None = None,
    ) -> list[Ended]:
        """Every rollout's end, in the order of the rollouts.

        Args:
            rollouts: what to make.
            sampling: how tokens are drawn; greedy by default.
            rejoin: tokens in a row that have to equal the reference's before a rollout stops early; None: never.
            answered: tells whether a rollout's answer is given, which ends it; None: never.
        """
        # Rollouts that have about as much of the answer ahead of them end together.
        order = sorted(range(len(rollouts)), key=lambda n: rollouts[n].position - len(rollouts[n].reference))
        row_by_row = [rollouts[place] for place in order]

        def read(places: range) -> list[Memory]:
            return self.memories.of([(*row_by_row[at].prompt, *row_by_row[at].text) for at in places])

        slots = Slots(self.batch_size)
        done = self.decoder.resume(
            read_ahead(read, len(row_by_row), self.batch_size),
            [(len(r.prompt) + r.position, [r.token]) for r in row_by_row],
            [len(r.prompt) for r in row_by_row],
            sampling=sampling,
            seeds=[r.seed for r in row_by_row],
            is_decided=decides(row_by_row, rejoin, answered),
            remember=False,
            slots=slots,
            **self.request,
        )
        for rollout, (answer, _) in zip(row_by_row, done, strict=True):
            self.cost.rolled(len(answer.ids) - rollout.position - 1)
        self.cost.use(slots.usage)
        ended = dict(zip(order, (Ended(answer.ids, answer.finish) for answer, _ in done), strict=True))
        return [ended[place] for place in range(len(rollouts))]


def decides(rollouts: Sequence[Rollout], rejoin: int | None, answered: Answered | None) -> Callable[[Row], str | None]:
    """A test whether a rollout's outcome is known: it came back to its reference's words, or its answer is given."""

    def is_decided(row: Row) -> str | None:
        rollout, answer = rollouts[row.index], row.answer
        # Only the tail is new; what came before was tested in earlier rounds.
        if rejoin is not None:
            since = max(len(answer) - rejoin - MOST_AT_ONCE, 0)
            if rejoined_at(rollout, answer, rejoin, since) is not None:
                return REJOINED
        return ANSWERED if answered is not None and answered(rollout, answer) else None

    return is_decided


def rejoined_at(rollout: Rollout, answer: Sequence[int], num: int, since: int = 0) -> int | None:
    """Where `num` tokens in a row, all behind the forced one, stand in the reference as well; None if nowhere."""
    reference = rollout.reference
    grams = {tuple(reference[at : at + num]) for at in range(len(reference) - num + 1)}
    starts = range(max(rollout.position + 1, since), len(answer) - num + 1)
    return next((at for at in starts if tuple(answer[at : at + num]) in grams), None)
