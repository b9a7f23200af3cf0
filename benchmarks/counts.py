"""Options of benchmarks that are lists with commas: positive numbers, and names."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite

from gistgate.errors import UserError
from gistgate.registry import nearest


def counts(text: str, option: str) -> list[int]:
    """The numbers of a list with commas.

    Raises:
        UserError: one of them is no positive whole number.
    """
    named = entries(text)
    if bad := [one for one in named if not one.isdecimal() or not int(one)]:
        raise UserError(f"'{bad[0]}' in {option} is no positive whole number. Pass numbers such as 8,16.")
    return [int(one) for one in named]


def numbers(text: str, option: str) -> list[float]:
    """The numbers of a list with commas, which need not be whole.

    Raises:
        UserError: one of them is no positive number.
    """
    named = entries(text)
    if bad := [one for one in named if not is_positive(one)]:
        raise UserError(f"'{bad[0]}' in {option} is no positive number. Pass numbers such as 0.5,4.")
    return [float(one) for one in named]


def names(text: str, known: Collection[str], refusal: str) -> list[str]:
    """The names of a list with commas.

    Args:
        text: the list.
        known: names that it may hold.
        refusal: what a sentence says of any other name, such as "is not certified here".

    Raises:
        UserError: one of them is not known; the nearest name is offered.
    """
    named = entries(text)
    if unknown := [one for one in named if one not in known]:
        raise UserError(f"'{unknown[0]}' {refusal}. {nearest(unknown[0], known)}")
    return named


def entries(text: str) -> list[str]:
    """What stands between the commas, without blanks around it."""
    return [one.strip() for one in text.split(",")]


def is_positive(text: str) -> bool:
    """Whether a text is a positive number."""
    try:
        return isfinite(found := float(text)) and found > 0
    except ValueError:
        return False
