"""One answer round by round: decoding runs in a thread, and stops when nobody reads any more."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from gistgate.block import Acceptance, Block, Reason
from gistgate.decoding.decoder import Decoder
from gistgate.observing.trace import TracedToken, Watch
from gistgate.pages.runs import numbers
from gistgate.request.rows import Row
from gistgate.request.statistics import Statistics


@dataclass(frozen=True)
class Step:
    """What one round adds to the answer."""

    tokens: list[TracedToken]
    numbers: dict[str, str]
    """Counters of the answer up to here, formatted."""


class Left(Exception):  # noqa: N818 (nothing is wrong)
    """The reader has gone; decoding ends."""


class Feed:
    """An observer that hands every committed token to another thread."""

    layers: Collection[str] = frozenset()
    wants_q: bool = False

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.items: SimpleQueue[Step | Exception | None] = SimpleQueue()
        """Steps, then None at the end, or the exception that ended decoding."""
        self.left = Event()
        self._watch = Watch()
        self._sent, self._text = 0, ""

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        """Send what the rounds before this one committed: only then is it known where the answer was cut."""
        if self.left.is_set():
            raise Left
        self._watch(block, acceptance, rows)
        self._send(rows[0].answer, rows[0].reasons, rows[0].statistics)

    def run(self, decoder: Decoder, ids: Sequence[int], request: dict[str, Any]) -> None:
        """Decode one prompt; every outcome ends in the queue."""
        try:
            answer = decoder.watched_by(self).generate([ids], **request)[0]
            self._send(answer.ids, answer.reasons, answer.statistics)
            self.items.put(None)
        except Exception as error:
            self.items.put(error)

    def _send(self, ids: Sequence[int], reasons: Sequence[int], statistics: Statistics) -> None:
        places = range(self._sent, len(ids))
        tokens = [
            TracedToken(self._added(ids[: at + 1]), Reason(reasons[at]).name.lower(), *self._watch.seen[at])
            for at in places
        ]
        self._sent = len(ids)
        if tokens:
            self.items.put(Step(tokens, numbers(statistics)))

    def _added(self, ids: Sequence[int]) -> str:
        """What the last of these tokens adds to the text; half a character waits for the token that completes it."""
        text: str = self.tokenizer.decode(ids).rstrip("\ufffd")
        added, self._text = text[len(self._text) :], text
        return added


def stream(decoder: Decoder, ids: Sequence[int], tokenizer: Any, **request: Any) -> Generator[Step, None, None]:
    """Continue one prompt and yield what every round adds; closing the iterator ends decoding within one round.

    Raises:
        UserError: the request is refused by `Decoder.generate`.
    """
    feed = Feed(tokenizer)
    worker = Thread(target=feed.run, args=(decoder, ids, request), daemon=True, name="decoding")
    worker.start()
    try:
        while (item := feed.items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        feed.left.set()
        worker.join()
