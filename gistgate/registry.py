"""Things of one kind by id, imported when they are first asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from gistgate.errors import UserError

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
