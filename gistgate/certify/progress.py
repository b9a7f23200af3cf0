"""What a comparison says while it runs, on standard error."""

from __future__ import annotations

import sys
from time import monotonic

from gistgate.core.utils import printable

TICK = 0.5  # seconds between two lines about the progress, on a terminal
SELDOM = 10.0  # the same elsewhere


def note(text: str, stays: bool = True) -> None:
    """A line to standard error; on a terminal it takes the place of one that does not stay."""
    text = printable(text)
    end = "\n"
    if sys.stderr.isatty():
        text = f"\r\033[K{text}"
        end = "\n" if stays else ""
    print(text, end=end, file=sys.stderr, flush=True)


class Progress:
    """How far a comparison is, its rate and the time left, but no outcome, so that an interruption
    is no look.
    """

    def __init__(self, total: int, need: int | None) -> None:
        self.total = total  # prompts, at most
        self.need = need  # prompts that the guessed share of changed answers asks for
        self.began = monotonic()
        self.last = self.began  # when something was said

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return monotonic() - self.began

    def tell(self, answered: int, fresh: int, with_plan: bool = False) -> None:
        """Say that so many prompts are answered, `fresh` of them in this run, if it is time or
        `with_plan`.
        """
        now = monotonic()
        pause = TICK if sys.stderr.isatty() else SELDOM
        if not with_plan and now - self.last < pause:
            return
        self.last = now
        rate = fresh / (now - self.began)
        text = f"{answered} of at most {self.total} prompts answered by both"
        if rate:
            seconds_left = (self.total - answered) / rate
            text += f", {60 * rate:.0f} a minute, {seconds_left:.0f} s left"
            if with_plan and self.need:
                text += f"; {self.need} prompts, as planned, take {self.need / rate:.0f} s"
        note(text, stays=with_plan)
