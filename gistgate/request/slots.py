"""How many rows of a request are decoded at a time, who hears of finished ones, and how well the slots were used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gistgate.errors import UserError


@dataclass
class Usage:
    """What was counted over rounds; several requests may count into one."""

    busy: int = 0
    """Slots that held an unfinished row."""
    available: int = 0
    """Slots that were asked for, whether or not the request had rows for all of them."""
    tokens: int = 0
    """Tokens of the finished rows."""
    forwards: int = 0
    """Target forwards of the finished rows."""

    def count(self, busy: int, available: int) -> None:
        """One more round."""
        self.busy, self.available = self.busy + busy, self.available + available

    def finish(self, tokens: int, forwards: int) -> None:
        """One more finished row."""
        self.tokens, self.forwards = self.tokens + tokens, self.forwards + forwards

    @property
    def mean_accepted_length(self) -> float:
        """tau of the finished rows; 0 before the first."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def idle(self) -> float:
        """Share of slots without a row, in [0, 1]; 0 before the first round."""
        return 1 - self.busy / self.available if self.available else 0.0


def ignore(_finished: int) -> None:
    """Hear of finished rows and do nothing."""


@dataclass(frozen=True)
class Slots:
    """The batch of a request: a finished row leaves its slot to one that waits."""

    number: int | None = None
    """Rows decoded at a time; None: all of the request."""
    progress: Callable[[int], object] = ignore
    """Called with the number of rows just finished, one row at a time."""
    usage: Usage = field(default_factory=Usage)
    """Where the use of the slots is counted."""

    def __post_init__(self) -> None:
        if self.number is not None and self.number < 1:
            raise UserError(f"A batch of {self.number} rows decodes nothing. Use a batch size of 1 or more.")

    def most(self, num_rows: int) -> int:
        """Slots that a request of so many rows has."""
        return num_rows if self.number is None else min(self.number, num_rows)
