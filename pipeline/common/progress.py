"""Progress of long stages: a bar on a terminal; elsewhere, as in a log, a plain line at most once a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from time import monotonic
from typing import Any

from tqdm import tqdm

from gistgate.request.slots import Usage

EVERY = 60.0
"""Fewest seconds between two lines of a process, and in front of the first, so that short work says nothing."""


class Pace:
    """Says when a line is due. All bars of a process share one, because they lie in each other."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` tells seconds."""
        self.clock = clock
        self._last: float | None = None

    def begin(self) -> float:
        """Begin the first minute, unless it has begun; returns the seconds at which the present one did."""
        if self._last is None:
            self._last = self.clock()
        return self._last

    def is_due(self) -> bool:
        """Whether a minute is over; the next one begins then."""
        now = self.clock()
        if now - self.begin() < EVERY:
            return False
        self._last = now
        return True


PACE = Pace()
"""That of this process."""


class Lines:
    """Stands in for a bar of tqdm where no terminal is: it prints a line of what is done when one is due."""

    def __init__(self, pieces: Iterable[Any] | None, title: str, unit: str, total: int | None) -> None:
        """Arguments are those of `bar`."""
        self.pieces, self.title, self.unit = pieces, title, unit
        self.total = len(pieces) if total is None and isinstance(pieces, Sized) else total
        self.n, self._note = 0, ""
        """Units that are done, and what else there is to say."""
        PACE.begin()

    def __iter__(self) -> Iterator[Any]:
        for piece in () if self.pieces is None else self.pieces:
            yield piece
            self.update(1)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Say this behind what is done, from the next line on."""
        self._note = text

    def update(self, number: int = 1) -> None:
        """Hear of units that were done."""
        self.n += number
        if PACE.is_due():
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Such as "label, strict: 312 of 781 rollouts"."""
        most = self.n if self.total is None else self.total
        done = f"{self.n}" if self.total is None else f"{self.n} of {self.total}"
        ending = "" if most == 1 else "es" if self.unit.endswith(("s", "x", "ch", "sh")) else "s"
        return f"{self.title}: {done} {self.unit}{ending}{self._note and f', {self._note}'}"


def bar(pieces: Iterable[Any] | None = None, *, title: str | None, unit: str, total: int | None = None) -> Any:
    """A progress bar around `pieces`, or one that the caller updates.

    Without a terminal it prints lines instead; without a title it is silent.
    """
    if title is not None and not sys.stderr.isatty():
        return Lines(pieces, title, unit, total)
    return tqdm(pieces, desc=title, unit=unit, total=total, disable=title is None)


def decoding(shown: Any, usage: Usage) -> Callable[[int], None]:
    """What hears of finished prompts: it moves the bar and shows the mean accepted length of what is decoded so far."""

    def finished(number: int) -> None:
        shown.set_postfix_str(f"tau {usage.mean_accepted_length:.2f}", refresh=False)
        shown.update(number)

    return finished


class Steps:
    """Hears of Lightning's steps and prints how many were taken. It goes into other processes, unlike a closure."""

    def __init__(self, title: str, total: int) -> None:
        """`total` is the most steps that the training takes."""
        self.lines = Lines(None, title, "step", total)

    def __call__(self, trainer: Any, *_step: object) -> None:
        """Count up to the trainer's batches, those of an earlier start among them.

        Its `global_step` counts every optimiser apart.
        """
        if trainer.is_global_zero:
            self.lines.update(trainer.fit_loop.epoch_loop.total_batch_idx + 1 - self.lines.n)


def lightning_bar(refresh_rate: int, title: str, total: int) -> list[Any]:
    """Callbacks with Lightning's bar, refreshed after so many steps; silent for 0.

    Without a terminal they print lines instead, for which `title` and `total`, the most steps, are given.
    """
    from pytorch_lightning.callbacks import LambdaCallback, TQDMProgressBar

    if not refresh_rate or sys.stdout.isatty():
        return [TQDMProgressBar(refresh_rate=refresh_rate)]
    silent = TQDMProgressBar(refresh_rate=0)  # Lightning adds a bar of its own where there is none
    return [silent, LambdaCallback(on_train_batch_end=Steps(title, total))]
