"""From YAML to frozen dataclasses by pydantic: a refusal is one sentence with place and remedy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import AllowInfNan, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gistgate.core.utils import UserError, nearest
from pipeline.paths import PARAMS, read_yaml

T = TypeVar("T")
WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "dict": "a block of keys",
    "dataclass": "a block of keys",
    "literal": "{expected}",
    "greater": "at least {ge:g}",
    "less": "at most {le:g}",
}
"""What a value has to be, by the first word of pydantic's name for the error."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def block(cls: type[T]) -> type[T]:
    """A frozen dataclass that `build` reads strictly."""
    cls.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


def number(value: Any) -> Any:
    """YAML reads 1e-3 as a text; a text that spells a number is that number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def between(low: float | None = None, high: float | None = None) -> Any:
    """The range of a number, both ends included."""
    return Field(ge=low, le=high)


Number = Annotated[float, AllowInfNan(False), BeforeValidator(number)]
Positive = Annotated[Number, between(0)]
Share = Annotated[Number, between(0, 1)]
Count = Annotated[int, between(1, 2**53)]
Natural = Annotated[int, between(0, 2**53)]


def read(cls: type[T], path: Path) -> T:
    """The dataclass `cls` from a YAML file."""
    return build(cls, read_yaml(path), file=str(path))


def build(cls: type[T], content: Any, where: str = "", file: str = str(PARAMS)) -> T:
    """The dataclass `cls` filled from nested dictionaries; `where` is their dotted place in `file`, for messages."""
    try:
        # As JSON, because strictness there still lets a list be a tuple and a whole number a number.
        return TypeAdapter(cls).validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        unknown = [detail for detail in error.errors() if detail["type"].startswith("unexpected")]
        raise UserError(f"{file}{sentence(cls, (unknown or error.errors())[0], where)}") from None


def sentence(cls: type, error: ErrorDetails, where: str) -> str:
    """What is wrong in a file and what to do, behind the file's name."""
    keys = [part for part in error["loc"] if isinstance(part, str)]
    place = ".".join([*([where] if where else []), *keys])
    if error["type"].startswith("unexpected"):
        return f" has an unknown key '{place}'. {nearest(keys[-1], known_keys(cls, keys[:-1]))}"
    if error["type"].startswith("missing"):
        return f" lacks the key '{place}'. Add it; the field has no default."
    wanted = WANTED.get(error["type"].split("_")[0], error["msg"]).format(**error.get("ctx", {}))
    subject = f"'{place}'" if place else "the file"
    return f": {subject} is {error['input']!r}, but it has to be {wanted}. Change the value."


def known_keys(hint: Any, path: list[str]) -> list[str]:
    """The keys of the block that `path` leads to from a type."""
    while get_origin(hint) in (Annotated, Union, UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return known_keys(hints[path[0]], path[1:]) if path else [item.name for item in fields(hint)]
    return known_keys(get_args(hint)[-1], path[1:])
