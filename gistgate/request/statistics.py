"""What was counted while decoding. Everything a report says is derived from these sums."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Statistics:
    """Sums over rounds; every count is made after the block was cut at its stop, so it agrees with the text.

    A round is one target forward for one row, the first included. Definitions: docs/statistics.md.
    """

    forwards: int = 0
    """Target forwards that this text took part in."""
    draft_forwards: int = 0
    """Draft forwards that this text took part in."""
    strict: int = 0
    """Accepted draft tokens before the first loose accept of their block."""
    loose: int = 0
    """Draft tokens accepted although the strict rule refuses them."""
    carried: int = 0
    """Strict accepts behind a loose accept of the same block."""
    own: int = 0
    """Tokens that the target added itself."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Rounds by accepted draft tokens."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by part (draft, verify, accept, total), shared evenly by the rows of a batch."""
    extra: dict[str, float] = field(default_factory=dict)
    """What a rule counts besides, by name."""

    @property
    def tokens(self) -> int:
        """Tokens that reached the output."""
        return self.strict + self.loose + self.carried + self.own

    @property
    def mean_accepted_length(self) -> float:
        """tau: tokens in the output per target forward, the target's own token included."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def loose_per_100(self) -> float:
        """Loosely accepted tokens per hundred tokens of output."""
        return 100 * self.loose / self.tokens if self.tokens else 0.0

    def spend(self, part: str, seconds: float) -> None:
        """Add wall-clock time to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def count(self, name: str) -> None:
        """One more of something besides."""
        self.extra[name] = self.extra.get(name, 0.0) + 1.0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.forwards + other.forwards,
            self.draft_forwards + other.draft_forwards,
            self.strict + other.strict,
            self.loose + other.loose,
            self.carried + other.carried,
            self.own + other.own,
            summed(self.histogram, other.histogram),
            summed(self.seconds, other.seconds),
            summed(self.extra, other.extra),
        )

    def as_dict(self, timed: bool = True) -> dict[str, Any]:
        """Plain JSON; without seconds when equal runs have to give equal bytes."""
        values = asdict(self)
        values["histogram"] = {str(length): count for length, count in sorted(self.histogram.items())}
        if not timed:
            del values["seconds"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Statistics:
        """The reverse of `as_dict`."""
        histogram = {int(length): count for length, count in values.get("histogram", {}).items()}
        return cls(**{**values, "histogram": histogram})


def summed(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    """Key-wise sum of two dictionaries of numbers."""
    return {key: a.get(key, 0) + b.get(key, 0) for key in sorted(a.keys() | b.keys())}


def total(parts: list[Statistics]) -> Statistics:
    """The sum of many."""
    return sum(parts, Statistics())
