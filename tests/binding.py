"""Tables of a page against the JSON files behind them: every column has one place in a file, every row one key.

A place is a path through the JSON with one or two keys left open, and a unit. A column is bound to a place that holds
all its figures; the open keys say which row is which. All columns of a row must leave the same key open, so that a
figure of another row, or one with a changed digit, finds no place.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

from tests import sources

Path = tuple[str, ...]
Place = tuple[Path, float]
OPEN = "*"


@cache
def leaves(file: str) -> list[tuple[float, Path]]:
    """Every number of a file with its path, by size: numbers among the keys too, and counts as shares of their n."""
    found: list[tuple[float, Path]] = []

    def walk(part: Any, path: Path) -> None:
        if isinstance(part, dict | list):
            pairs = part.items() if isinstance(part, dict) else enumerate(part)
            for key, value in pairs:
                walk(value, (*path, str(key)))
            if isinstance(part, dict):
                found.extend((float(key), (*path, key, "key")) for key in part if re.fullmatch(r"\d+(\.\d+)?", key))
                found.extend((value / part["n"], (*path, key, "share")) for key, value in counts(part))
        elif isinstance(part, int | float) and not isinstance(part, bool):
            found.append((abs(float(part)), path))

    walk(json.loads((sources.ROOT / file).read_text()), (file,))
    return sorted(found)


def counts(part: dict[str, Any]) -> list[tuple[str, int]]:
    """The whole numbers of an object that has an n."""
    return [(key, value) for key, value in part.items() if type(value) is int] if part.get("n") else []


@cache
def places(file: str, figure: str, opened: int) -> dict[Place, frozenset[Path]]:
    """The places with so many open keys that hold a figure, each with the keys that were left open there."""
    found: dict[Place, set[Path]] = {}
    for path, unit in matches(file, figure):
        for at in combinations(range(len(path)), opened):
            place = tuple(OPEN if i in at else key for i, key in enumerate(path)), unit
            found.setdefault(place, set()).add(tuple(path[i] for i in at))
    return {place: frozenset(keys) for place, keys in found.items()}


def matches(file: str, figure: str) -> Iterator[tuple[Path, float]]:
    """Every number of a file that rounds to the figure in one of the units."""
    numbers, (low, high) = leaves(file), sources.span(figure)
    for unit in sources.UNITS:
        begin = bisect_left(numbers, low / unit, key=lambda one: one[0])
        end = bisect_right(numbers, high / unit, key=lambda one: one[0])
        yield from ((path, unit) for _, path in numbers[begin:end])


Column = tuple[int, int]
"""The number of a cell, and of a figure in it."""
Cells = dict[int, str]
"""The figures of a column by row."""
Columns = dict[Column, Cells]
Bound = dict[Place, dict[int, frozenset[Path]]]
"""The places that hold a whole column, with the open keys of every row."""


def columns_of(rows: list[str]) -> Columns:
    """The figures of a table by column and row."""
    columns: Columns = {}
    for row, line in enumerate(rows):
        for number, cell in enumerate(sources.cells_of(line)):
            for at, figure in enumerate(sources.figures_of(cell)):
                columns.setdefault((number, at), {})[row] = figure
    return columns


def bound(files: list[str], cells: Cells, opened: int) -> Bound:
    """The places that hold all figures of a column."""
    held = {row: merged([places(file, figure, opened) for file in files]) for row, figure in cells.items()}
    common = set.intersection(*(set(one) for one in held.values()))
    return {place: {row: held[row][place] for row in cells} for place in common}


def merged(parts: list[dict[Place, frozenset[Path]]]) -> dict[Place, frozenset[Path]]:
    """The places of several files; a file may be what a row leaves open."""
    found: dict[Place, frozenset[Path]] = {}
    for part in parts:
        for place, keys in part.items():
            found[place] = found.get(place, frozenset()) | keys
    return found


def has_source(words: list[str], rows: list[str], page: str) -> bool:
    """Whether every figure of a table on the page of this name has its place in the files that a source line names."""
    if "settings" in words:
        return True
    if tests := [word for word in words if word.endswith(".py")]:
        return all(page in (sources.ROOT / test).read_text() for test in tests)
    files = [word for word in words if word.endswith(".json")]
    loose = {int(number) - 1 for word in words if word.startswith("loose:") for number in word[6:].split(",")}
    return bool(files) and is_bound(files, rows, loose, "apart" in words)


def is_bound(files: list[str], rows: list[str], loose: set[int], apart: bool) -> bool:
    """Whether every figure of a table has its place, with as few open keys as bind the columns and the rows.

    Args:
        files: JSON files.
        rows: lines of the table, without its head. Figures of the first column name rows and are not looked for.
        loose: cells, from 0 on, whose column has no single place: their figures lie anywhere below the row's keys.
        apart: whether the columns of a row lie below other keys; loose ones then lie anywhere in the files.
    """
    columns = {column: cells for column, cells in columns_of(rows).items() if column[0] > 0}
    free = [columns.pop(column) for column in list(columns) if column[0] in loose]
    for opened in (1, 2, 3):
        found = [bound(files, cells, opened) for cells in columns.values()]
        keys = {row: None if apart else shared(found, row) for row in range(len(rows))}
        if all(found) and all(one is None or one for one in keys.values()):
            return all(lies_below(files, figure, keys[row]) for cells in free for row, figure in cells.items())
    return False


def shared(columns: list[Bound], row: int) -> set[Path] | None:
    """The keys that all columns of a row can leave open; None where the row has no figure."""
    keys = [{key for one in column.values() if row in one for key in one[row]} for column in columns]
    filled = [one for one in keys if one]
    return set.intersection(*filled) if filled else None


def lies_below(files: list[str], figure: str, keys: set[Path] | None) -> bool:
    """Whether a number that the figure shows has a path through a row's key, or all but one of several open ones."""
    paths = (path for file in files for path, _ in matches(file, figure))
    return any(keys is None or any(through(path, key) for key in keys) for path in paths)


def through(path: Path, key: Path) -> bool:
    """Whether a path holds as many of these keys as it takes."""
    return len(set(key) & set(path)) >= max(1, len(key) - 1)
