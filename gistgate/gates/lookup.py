"""Finding something by its id, with a helpful sentence when the id is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from gistgate.errors import UserError

T = TypeVar("T")


def look_up(table: Mapping[str, T], name: str, kind: str) -> T:
    """`table[name]`.

    Raises:
        UserError: there is no such id; the nearest one is offered.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(sorted(table))}."
    raise UserError(f"There is no {kind} '{name}'. {hint}")
