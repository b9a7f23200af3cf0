"""Options of benchmarks that are lists of positive whole numbers."""

from __future__ import annotations

from gistgate.errors import UserError


def counts(text: str, option: str) -> list[int]:
    """The numbers of a list with commas.

    Raises:
        UserError: one of them is no positive whole number.
    """
    named = [one.strip() for one in text.split(",")]
    if bad := [one for one in named if not one.isdecimal() or not int(one)]:
        raise UserError(f"'{bad[0]}' in {option} is no positive whole number. Pass numbers such as 8,16.")
    return [int(one) for one in named]
