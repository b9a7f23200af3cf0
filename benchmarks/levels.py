"""Which loads a server is measured under, and whether the run has prompts enough for them."""

from __future__ import annotations

from math import ceil

from benchmarks.counts import counts, numbers
from benchmarks.load import Level
from gistgate.errors import UserError


def levels_of(users: str, rates: str, each: int, most: int, seconds: float) -> dict[Level, int]:
    """Every level that is asked for, with its requests in a round.

    Raises:
        UserError: there is none, or a size is no number.
    """
    found = {Level(users=one): min(each * one, most) for one in (counts(users, "--users") if users else [])}
    found |= {Level(rate=one): ceil(seconds * one) for one in (numbers(rates, "--rates") if rates else [])}
    if not found:
        raise UserError("No load is asked for. Name --users, --rates or both.")
    return found


def check_levels(asked: dict[Level, int], prompts: int) -> None:
    """Refuse a round that the test prompts do not fill, before any server starts.

    Raises:
        UserError: the level that asks most, and what lowers it.
    """
    level = max(asked, key=lambda one: asked[one])
    if asked[level] > prompts:
        lower = "--each, --most or --users" if level.users is not None else "--seconds or --rates"
        raise UserError(
            f"The run has {prompts} test prompts, and a round at {level.name} asks {asked[level]}. Lower {lower}."
        )
