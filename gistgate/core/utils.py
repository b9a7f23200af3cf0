"""Dataclasses from JSON objects, each value checked against the annotation of its field."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# ---- The exceptions whose message is meant for a person, and what a person meets of others.


class UserError(Exception):
    """Something the user can mend. The message is one sentence or two: the cause, then the remedy."""


class Interrupted(Exception):  # noqa: N818 (nothing is wrong)
    """The user pressed Ctrl-C."""


def first_line(error: BaseException) -> str:
    """The beginning of a message, without its full stop; the error's name where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200].rstrip(". ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or in the machine; torch says so in several ways."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
    )


# ---- Things of one kind by id, imported when they are first asked for.


T = TypeVar("T")


class UnknownIdError(UserError, KeyError):
    """There is no such id; the message offers the nearest one."""

    __str__ = Exception.__str__  # a KeyError would show its message in quotation marks


class Registry(Mapping[str, T]):
    """A read-only mapping from ids to things, of which those written as "module:name" are imported on first use."""

    def __init__(self, kind: str, entries: Mapping[str, str | T]) -> None:
        """Name the entries; nothing is imported.

        Args:
            kind: what the entries are, as messages call it: "rule", "drafter".
            entries: for each id the thing itself, or the text "module:name".
        """
        self.kind = kind
        self._entries: dict[str, Any] = dict(entries)

    def __getitem__(self, name: str) -> T:
        """The thing with this id.

        Raises:
            UnknownIdError: there is none; the nearest id is offered.
        """
        if name not in self._entries:
            raise UnknownIdError(f"There is no {self.kind} '{name}'. {nearest(name, self)}")
        found = self._entries[name]
        if isinstance(found, str):
            found = self._entries[name] = imported(found)
        thing: T = found
        return thing

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def imported(reference: str) -> Any:
    """What "module:name" refers to. The export to transformers replaces this function."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def nearest(name: str, known: Iterable[str]) -> str:
    """The sentence that helps after a mistyped name: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names) or 'none'}."


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


# ---- Tokens that steer an answer instead of being a part of it.


def added_ids(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Every added token of a tokenizer: chat, think and tool markers, and ends of text.

    No rule accepts one loosely, and every draft may propose it.
    """
    return () if tokenizer is None else tuple(sorted(int(token) for token in tokenizer.added_tokens_decoder))


def printable(text: str) -> str:
    """A text that cannot steer a terminal: control characters and half characters are written as escapes."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
