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

MOST_AT_ONCE = 64
"""Most tokens that a round adds; the test for rejoining looks that far back."""
REJOINED = "rejoined"
"""Finish of a rollout that came back to the words of its reference."""


@dataclass(frozen=True)
class Rollout:
    """One continuation to make."""

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


class Roller:
    """Makes rollouts, `batch_size` at a time; a text that several of a batch share is read once."""

    def __init__(self, decoder: Decoder, batch_size: int, rejoin: int | None, **request: Any) -> None:
        """`rejoin`: tokens in a row that have to equal the reference's before a rollout stops early; None: never."""
        self.decoder, self.batch_size, self.rejoin, self.request = decoder, batch_size, rejoin, request

    def answers(self, rollouts: Sequence[Rollout], sampling: Sampling | None = None) -> list[tuple[list[int], bool]]:
        """For each rollout its answer, and whether it stopped early because it rejoined the reference."""

        # Rollouts come ordered by problem, so those read ahead share few texts, and each of these is read once.
        def read(places: range) -> list[Memory]:
            return memories_of(self.decoder, [(*rollouts[at].prompt, *rollouts[at].text) for at in places])

        done = self.decoder.resume(
            read_ahead(read, len(rollouts), self.batch_size),
            [(len(r.prompt) + r.position, [r.token]) for r in rollouts],
            [len(r.prompt) for r in rollouts],
            sampling=sampling,
            seeds=[r.seed for r in rollouts],
            is_decided=None if self.rejoin is None else rejoins(rollouts, self.rejoin),
            remember=False,
            slots=Slots(self.batch_size),
            **self.request,
        )
        return [(answer.ids, answer.finish == REJOINED) for answer, _ in done]


def memories_of(decoder: Decoder, texts: Sequence[tuple[int, ...]]) -> list[Memory]:
    """What both models remember of each text; equal texts are read once."""
    different = list(dict.fromkeys(texts))
    read = decoder.remember(different)
    by_text = dict(zip(different, read, strict=True))
    return [by_text[text] for text in texts]


def rejoins(rollouts: Sequence[Rollout], num: int) -> Callable[[Row], str | None]:
    """A test whether a rollout has come back to its reference's words."""

    def is_decided(row: Row) -> str | None:
        rollout, answer = rollouts[row.index], row.answer
        # Only the tail is new; what came before was tested in earlier rounds.
        since = max(len(answer) - num - MOST_AT_ONCE, 0)
        return None if rejoined_at(rollout, answer, num, since) is None else REJOINED

    return is_decided


def rejoined_at(rollout: Rollout, answer: Sequence[int], num: int, since: int = 0) -> int | None:
    """Where `num` tokens in a row, all behind the forced one, stand in the reference as well; None if nowhere."""
    reference = rollout.reference
    grams = {tuple(reference[at : at + num]) for at in range(len(reference) - num + 1)}
    starts = range(max(rollout.position + 1, since), len(answer) - num + 1)
    return next((at for at in starts if tuple(answer[at : at + num]) in grams), None)


def is_trustworthy(rollouts: Sequence[Rollout], answers: Sequence[list[int]], kept: Sequence[bool], num: int) -> bool:
    """Whether at least 99 % of the whole rollouts that ever rejoin their reference keep the meaning."""
    rejoining = [
        fine
        for rollout, answer, fine in zip(rollouts, answers, kept, strict=True)
        if rejoined_at(rollout, answer, num) is not None
    ]
    return bool(rejoining) and sum(rejoining) >= 0.99 * len(rejoining)
