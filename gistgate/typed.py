"""Dataclasses from JSON objects, each value checked against the annotation of its field."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", dict: "an object"}
"""What a value has to be, in words."""


def dataclass_from(kind: type[Any], value: Any) -> Any:
    """A dataclass from a mapping, such as a JSON object. Whole numbers are numbers; truth values are not.

    Raises:
        ValueError: the value is no mapping, it has an unknown key, or an entry is of another kind than its field.
        TypeError: a field without a default is missing.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} stands where an object is expected")
    known = hints(kind)
    for key, entry in value.items():
        if key not in known:
            near = difflib.get_close_matches(key, list(known), n=1)
            raise ValueError(f"unknown key '{key}'" + (f" (did you mean '{near[0]}'?)" if near else ""))
        if not fits(entry, known[key]):
            raise ValueError(f"'{key}' is {shown(entry)}, but it has to be {in_words(known[key])}")
    return kind(**value)


def hints(kind: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass with their resolved annotations."""
    resolved = get_type_hints(kind)
    return {item.name: resolved[item.name] for item in fields(kind)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation promises, down to the entries of lists and dictionaries."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, arm) for arm in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(item, inner[0]) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, hint)


def is_finite(value: float) -> bool:
    """Whether a number is one that float64 can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def in_words(hint: Any) -> str:
    """An annotation in words."""
    if get_origin(hint) in (Union, UnionType):
        arms = [arm for arm in get_args(hint) if arm is not NoneType]
        return " or ".join([*map(in_words, arms), "null"])
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return WORDS.get(hint, "an object")


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
