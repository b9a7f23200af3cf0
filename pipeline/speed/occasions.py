"""Speeds that were measured on several occasions as one: intervals that cover all of them.

A bootstrap over prompts knows nothing of what differs between two hours of a machine, such as its clock or its other
users. Every occasion has the same weight, and its own figures are kept beside what is derived from all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Any

RATIO = {"mean", "low", "high"}
"""Keys of a ratio with its interval."""
JOINED: dict[str, Callable[[Sequence[Any]], Any]] = {"tokens_per_second": fmean, "n": min, "loops": max}
"""How other figures become one: rates by their mean; the occasions have the same prompts, so n is the least of theirs.
What is not named here is that of the last occasion."""


def joined(occasions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Entries of several occasions as one; what one of them lacks comes from the others.

    A ratio becomes the geometric mean of its means, between the lowest and the highest end.
    """
    names = dict.fromkeys(name for one in occasions for name in one)
    return {name: value_of(name, [one[name] for one in occasions if name in one]) for name in names}


def value_of(name: str, values: Sequence[Any]) -> Any:
    """One value of the occasions that have it."""
    if not all(isinstance(value, Mapping) for value in values):
        return JOINED.get(name, last)(values)
    return ratio(values) if values[0].keys() >= RATIO else joined(values)


def ratio(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One ratio of all occasions."""
    return {
        **values[-1],
        "mean": geometric_mean(value["mean"] for value in values),
        "low": min(value["low"] for value in values),
        "high": max(value["high"] for value in values),
    }


def last(values: Sequence[Any]) -> Any:
    """The value of the last occasion."""
    return values[-1]
