"""Which occasions of benchmarks.speed belong together, and what all of them say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json
from pipeline.common.code import FILES, KEY
from pipeline.speed.occasions import joined

SETTINGS = ("pair", "strict_block", "points", "development", "machine", "code")
"""Entries of a result that two occasions have in common, the prompts of every batch size besides."""


def earlier_occasions(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result that another occasion is added to, refused before anything is measured.

    Raises:
        UserError: there is none, it keeps no occasions, or it was measured with other settings, prompts or code, or on
            another machine.
    """
    earlier: Mapping[str, Any] = read_json(path)
    if not isinstance(earlier.get("occasions"), list):
        raise UserError(f"{path} does not keep its occasions apart. Measure without --again, and then once more.")
    code = {name: one for name, one in earlier.get(KEY, {}).items() if name != FILES}  # the figure is drawn afterwards
    measured = {**earlier, KEY: code}
    names = [name for name in SETTINGS if fingerprint(measured.get(name)) != fingerprint(settings[name])]
    known, asked = earlier["prompts"], settings["prompts"]
    names += [f"prompts of batch {size}" for size in asked if size in known and known[size] != asked[size]]
    if names:
        raise UserError(
            f"{path} was measured with another value of: {', '.join(names)}. Measure without --again, and publish the "
            "new measurement alone."
        )
    return earlier


def all_batches(occasions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By batch size what all occasions say that measured it."""
    sizes = {size for one in occasions for size in one}
    return {size: together([one[size] for one in occasions if size in one]) for size in sorted(sizes, key=int)}


def together(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One batch size: each contender with the number of occasions on which it ran, and what failed on any of them."""
    each = [one["contenders"] for one in measured]
    found = {
        name: {**entry, "occasions": sum(name in contenders for contenders in each)}
        for name, entry in joined(each).items()
    }
    failed = joined([one["failed"] for one in measured])
    return {"contenders": found, "failed": failed, "occasions": len(measured)}
