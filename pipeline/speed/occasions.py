"""Speeds that were measured on several occasions: an interval that covers each of them.

A bootstrap over prompts knows nothing of what differs between two hours of a machine, such as its clock or its other
users. Whoever measures again widens every interval until it covers both measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from gistgate.errors import UserError

RATIO = {"mean", "low", "high"}
"""Keys of a ratio with its interval."""
JOINED = {"tokens_per_second": lambda first, second: (first + second) / 2, "n": lambda first, second: first + second}
"""How other figures of two occasions become one: rates by their mean, numbers of batches by their sum."""


def covering(first: Any, second: Any) -> Any:
    """The results of two occasions as one: ratios with the geometric mean and an interval that covers both.

    Rates are averaged and numbers of batches added; all other values are those of the second occasion.

    Raises:
        UserError: something was measured on one occasion only.
    """
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return second
    if first.keys() >= RATIO and second.keys() >= RATIO:
        return {**second, **joined(first, second)}
    if missing := first.keys() ^ second.keys():
        raise UserError(
            f"'{sorted(missing)[0]}' was measured on one occasion only. Measure the same contenders on both, or "
            "publish the new measurement alone."
        )
    return {
        key: JOINED[key](value, second[key]) if key in JOINED else covering(value, second[key])
        for key, value in first.items()
    }


def joined(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """One ratio of two occasions."""
    return {
        "mean": sqrt(first["mean"] * second["mean"]),
        "low": min(first["low"], second["low"]),
        "high": max(first["high"], second["high"]),
    }
