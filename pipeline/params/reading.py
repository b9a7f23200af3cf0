"""From nested dictionaries to frozen dataclasses: unknown keys, wrong types and values out of range are refused.

A field's annotation is its contract: `int`, `float`, `bool`, `str`, `X | None`, `tuple[X, ...]`, `dict[str, X]`,
another dataclass, or any of these with `Annotated[..., Between(low, high)]` for a range.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gistgate.errors import UserError

T = TypeVar("T")
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
    dict: "a block",
}


@dataclass(frozen=True)
class Between:
    """Both ends of a range of numbers, ends included."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        return f"at most {self.high:g}" if math.isinf(self.low) else f"between {self.low:g} and {self.high:g}"


def build(cls: type[T], block: Any, where: str = "", base: T | None = None) -> T:
    """The dataclass `cls` filled from the dictionary `block`; `where` is its dotted place in the file, for messages.

    Keys that are absent keep the values of `base`, else the class's defaults.

    Raises:
        UserError: an unknown or missing key, a wrong type, or a value out of range.
    """
    if not isinstance(block, dict):
        raise wrong(where, block, "a block of keys")
    hints = get_type_hints(cls, include_extras=True)
    for key in block:
        if key not in hints:
            raise UserError(f"params.yaml has an unknown key '{join(where, key)}'. {nearest(str(key), hints)}")
    start = {} if base is None else {field.name: getattr(base, field.name) for field in fields(cls)}  # type: ignore
    for field in fields(cls):  # type: ignore[arg-type]
        if field.default is not MISSING:
            start.setdefault(field.name, field.default)
        elif field.default_factory is not MISSING:
            start.setdefault(field.name, field.default_factory())
        elif field.name not in block and field.name not in start:
            raise UserError(f"params.yaml lacks the key '{join(where, field.name)}'. Add it; the field has no default.")
    given = {key: convert(hints[key], value, join(where, key), start.get(key)) for key, value in block.items()}
    return cls(**{**start, **given})


def convert(hint: Any, value: Any, where: str, base: Any = None) -> Any:
    """`value` as `hint` wants it; a nested dataclass keeps from `base` what `value` does not mention."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return in_range(convert(inner[0], value, where), inner[1], where)
    if origin in (Union, types.UnionType):
        return None if value is None else convert(next(arm for arm in inner if arm is not type(None)), value, where)
    if origin is tuple:
        return tuple(convert(inner[0], item, f"{where}[{i}]") for i, item in enumerate(expect(list, value, where)))
    if origin is dict:
        return {key: convert(inner[1], item, join(where, key)) for key, item in expect(dict, value, where).items()}
    if is_dataclass(hint):
        return build(hint, value, where, base)
    return scalar(hint, value, where)


def scalar(hint: type, value: Any, where: str) -> Any:
    """A whole number, number, truth value or text; `1e-3`, which YAML 1.1 reads as a text, counts as a number."""
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            raise wrong(where, value, NAMES[float]) from None
        if math.isfinite(number):
            return number
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise wrong(where, value, NAMES.get(hint, hint.__name__))


def expect(kind: type, value: Any, where: str) -> Any:
    """`value`, checked to be of that container type."""
    if not isinstance(value, kind):
        raise wrong(where, value, "a list" if kind is list else "a block of keys")
    return value


def in_range(value: Any, limits: Between, where: str) -> Any:
    """`value`, or every item of it, checked to lie within `limits`; None passes."""
    for item in value if isinstance(value, tuple) else (value,):
        if item is not None and not limits.low <= item <= limits.high:
            raise UserError(f"params.yaml: '{where}' is {item}, but it has to be {limits}. Change the value.")
    return value


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that helps after a mistyped name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known keys: {', '.join(sorted(known))}."


def join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def wrong(where: str, value: Any, wanted: str) -> UserError:
    place = f"'{where}'" if where else "the file"
    return UserError(f"params.yaml: {place} is {value!r}, but it has to be {wanted}. Change the value.")
