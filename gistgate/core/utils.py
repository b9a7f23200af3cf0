"""Errors for the user, registries by id, dataclasses from JSON objects, and ranges of their
fields.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class UserError(Exception):
    """Something the user can mend; the message says the cause, then the remedy."""


class PromptError(UserError):
    """One prompt gets no whole answer of a server; others may go well."""


INTERRUPTED = 130  # status with which Typer ends a program after Ctrl-C


def first_line(error: BaseException) -> str:
    """The beginning of a message, without its full stop; the error's name where it says nothing."""
    text = f"no entry {error}" if isinstance(error, KeyError) else str(error)
    lines = text.strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(".: ")


@contextmanager
def refusing(sentence: str, remedy: str) -> Iterator[None]:
    """While open, refuse an object from a file that misses an entry or holds a wrong one."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        cause = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{sentence}: {cause}. {remedy}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or in the machine; torch says so in several ways."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    is_told = "out of memory" in text or "can't allocate memory" in text
    return isinstance(error, RuntimeError) and is_told


T = TypeVar("T")


class UnknownIdError(UserError, KeyError):
    """There is no such id; the message offers the nearest one."""

    __str__ = Exception.__str__  # a KeyError would show its message in quotation marks


class Registry(UserDict[str, T]):
    """Things by id, of which those written as "module:name" are imported on first use."""

    data: dict[str, Any]

    def __init__(self, kind: str, entries: Mapping[str, Any]) -> None:
        self.kind = kind  # what the entries are, as messages call it: "rule", "drafter"
        self.data = dict(entries)

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UnknownIdError(f"There is no {self.kind} '{name}'. {nearest(name, self)}")
        if isinstance(self.data[name], str):
            self.data[name] = imported(self.data[name])
        entry: T = self.data[name]
        return entry


def imported(reference: str) -> Any:
    """What "module:name" refers to. The export to transformers replaces this function."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that helps after a mistyped name: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names) or 'none'}."


def dataclass_from(kind: type[T], value: Any) -> T:
    """A dataclass from a mapping, such as a JSON object.

    Whole numbers are numbers; truth values are not.

    Raises:
        ValueError: an entry does not fit, or no field has its name.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} stands where an object is expected")
    annotations = hints(kind)
    for key, entry in value.items():
        if key not in annotations:
            raise ValueError(f"unknown key '{key}' ({nearest(key, annotations)})")
        hint = annotations[key]
        if not fits(entry, hint):
            raise ValueError(f"'{key}' is {shown(entry)}, but it has to be {in_words(hint)}")
    return kind(**value)


def hints(kind: type[Any]) -> dict[str, Any]:
    """The fields of a dataclass with their resolved annotations, ranges included."""
    resolved = get_type_hints(kind, include_extras=True)
    return {item.name: resolved[item.name] for item in fields(kind)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation promises, with the entries of lists and
    dictionaries.
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, arm) for arm in inner)
    if origin is Literal:
        return value in inner
    if origin is dict:
        is_dict = isinstance(value, dict)
        return is_dict and all_fit(value, inner[0]) and all_fit(value.values(), inner[1])
    if origin is tuple:
        return isinstance(value, tuple | list) and all_fit(value, inner[0])
    if origin is Annotated:
        number, limits = inner
        return is_number(value, number) and limits.holds(value)
    if hint in (int, float):
        return is_number(value, hint) and math.isfinite(value)
    return isinstance(value, origin or hint)


def is_number(value: Any, kind: type[int] | type[float]) -> bool:
    """Whether a value is a number of this kind; whole numbers are numbers, truth values are not."""
    return isinstance(value, int | kind) and not isinstance(value, bool)


def all_fit(values: Iterable[Any], hint: Any) -> bool:
    """Whether all values are what an annotation promises."""
    return all(fits(value, hint) for value in values)


IN_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
    NoneType: "null",
}


def in_words(hint: Any) -> str:
    """An annotation in words."""
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Annotated:
        return f"{'a whole number' if inner[0] is int else 'a number'} in {inner[1]}"
    return IN_WORDS.get(origin or hint, "an object")


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Between:
    """The range of a setting, as in `Annotated[float, Between(0, 1)]`, with its ends unless `low`
    is left out.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # leaves `low` out

    def __str__(self) -> str:
        opening = "(" if self.above else "["
        return f"{opening}{self.low:g}, {self.high:g}]"

    def holds(self, value: float) -> bool:
        """Whether a number lies in it; NaN lies nowhere."""
        return self.low <= value <= self.high and not (self.above and value == self.low)


Share = Annotated[float, Between(0, 1)]
PositiveShare = Annotated[float, Between(0, 1, above=True)]
Positive = Annotated[float, Between(0, above=True)]
Amount = Annotated[float, Between(0)]
Risk = Annotated[float, Between(high=1)]  # a probability of harm; below 0 a rule is strict
Real = Annotated[float, Between()]  # infinite ones, too
Natural = Annotated[int, Between(0)]
Count = Annotated[int, Between(1)]


def added_ids(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Added tokens of a tokenizer, such as markers and ends of text.

    They are never accepted loosely, and any draft may propose them.
    """
    return () if tokenizer is None else tuple(sorted(map(int, tokenizer.added_tokens_decoder)))


@contextmanager
def replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    """While open, an attribute of a thing has another value."""
    before = getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        setattr(thing, name, before)


CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
DIRECTIONS = "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
SURROGATES = "\ud800-\udfff"
UNSEEN = re.compile(f"[{CONTROL}{DIRECTIONS}{SURROGATES}]")
"""Control characters, marks that change the direction of writing, halves of surrogate pairs."""


def printable(text: str) -> str:
    """A text that cannot steer a terminal; letters, signs and spaces of every language stay."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)
