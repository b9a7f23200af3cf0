"""Figures of a page of docs/ against the files that it names as their sources.

A line `<!-- source: FILE ... -->` names the files behind all figures that follow, up to the next such line. Every row
of a table must then be found within one entry of one of these files: a part of the JSON that holds all figures of the
row, rounded as the row shows them, and little else. An interval in the text must lie beside its figure in the same
way.

`cells` among the names lets every cell of a row have an entry of its own. A name that ends in `.py` is a test that
compares the table itself, because its figures are computed from a file. `settings` marks a table of settings, in which
nothing was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"<!-- source: (.*?) -->", flags=re.S)
GENERATED = re.compile(r"<!-- results: begin.*?<!-- results: end -->", flags=re.S)
"""Tables that `make publish` writes; the tests of the publishers compare them with their files."""
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|(?<![\w.])\d{3,}(?![\w.])")
"""What must have a source: numbers with decimals, and whole numbers from 100."""
INTERVAL = re.compile(r"-?\d+\.\d+\s+\[-?\d+\.\d+,\s+-?\d+\.\d+\]")
ENTRY = 120
"""Most numbers of an entry: a whole file holds nearly every figure somewhere."""
UNITS = (1, 100, 1000, 1e-6)
"""A share may be shown in per cent, seconds in milliseconds, bytes in megabytes."""


def claims(page: str) -> Iterator[tuple[list[str], str]]:
    """Every row of a table and every interval in the text that shows figures, with the sources that it stands under."""
    parts = SOURCE.split(GENERATED.sub("", page))
    for files, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
        for claim in (*rows, *INTERVAL.findall(prose)):
            if FIGURE.search(plain(claim)):
                yield files.split(), claim


def plain(text: str) -> str:
    """Without links, code and grouped thousands."""
    text = re.sub(r"\]\([^)]*\)|`[^`]*`|\b\d{4}\.\d{4,5}\b", " ", text)
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "", text)


def has_source(files: list[str], claim: str, page: str) -> bool:
    """Whether an entry of one of the files holds all figures of this claim on a page of this name."""
    if "settings" in files:
        return True
    if tests := [file for file in files if file.endswith(".py")]:
        return all(page in (ROOT / test).read_text() for test in tests)
    held = [entry for file in files if file != "cells" for entry in entries(file)]
    claims = claim.split("|") if "cells" in files else [claim]
    return all(any(shows(entry, figures) for entry in held) for figures in map(figures_of, claims) if figures)


def figures_of(claim: str) -> list[str]:
    """The figures of a claim without their signs."""
    return FIGURE.findall(plain(claim))


def shows(entry: tuple[float, ...], figures: list[str]) -> bool:
    """Whether each figure is one of the entry's numbers, rounded."""
    return all(any(is_rounded(figure, abs(number) * unit) for number in entry for unit in UNITS) for figure in figures)


def is_rounded(figure: str, number: float) -> bool:
    """Whether the figure is the number with as many digits as it has; zeros at the end of a whole number are none."""
    whole, _, decimals = figure.partition(".")
    place = -len(decimals) if decimals else len(whole) - len(whole.rstrip("0"))
    return abs(float(figure) - number) <= 0.5 * 10**place + 1e-9


def shares(part: Any) -> tuple[float, ...]:
    """Counts of an entry as shares of its n."""
    counts = [value for value in part.values() if isinstance(value, int)] if isinstance(part, dict) else []
    return tuple(count / part["n"] for count in counts if part.get("n"))


@cache
def entries(file: str) -> list[tuple[float, ...]]:
    """The numbers of every part of a JSON file that is small enough to be an entry."""
    found: list[tuple[float, ...]] = []

    def walk(part: Any) -> tuple[float, ...]:
        if isinstance(part, dict | list):
            values = [*part.values(), *(int(key) for key in part if key.isdigit())] if isinstance(part, dict) else part
            numbers = tuple(number for value in values for number in walk(value))
            own = tuple(float(value) for value in values if isinstance(value, int | float))
            found.append((numbers if len(numbers) <= ENTRY else own[:ENTRY]) + shares(part))
            return numbers
        return (float(part),) if isinstance(part, int | float) and not isinstance(part, bool) else ()

    walk(json.loads((ROOT / file).read_text()))
    return found
