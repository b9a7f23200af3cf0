"""Figures of a page of docs/ against the files that it names as their sources.

A line `<!-- source: FILE ... -->` names the JSON files behind all tables that follow, up to the next such line; their
figures are compared as tests/binding.py says. Words beside the files: `loose:3,7` names columns (from 1 on) without a
single place, `apart` says that the columns of a row lie below other keys. A name that ends in `.py` is a test that
compares the table itself, because its figures are computed from a file. `settings` marks a table of settings, in which
nothing was measured.

Decimals in the text are listed in tests/prose.yaml, in their order, each with its place in a file (tests/prose.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"<!-- source: (.*?) -->", flags=re.S)
GENERATED = re.compile(r"<!-- (\w+): begin.*?<!-- \1: end -->", flags=re.S)
"""Parts that the publishers write; their tests compare them with the files."""
HIDDEN = re.compile(r"```.*?```|<!--.*?-->", flags=re.S)
ASIDE = re.compile(r"^(?:\||    ).*$", flags=re.M)
"""Lines of tables and of indented code."""
NAMES = re.compile(r"\]\([^)]*\)|`[^`]*`|\b\d{4}\.\d{4,5}\b")
"""Targets of links, code in the text, and numbers of papers."""
DECIMAL = r"(?<![\w.])\d+\.\d+(?!\w|\.\d)"
FIGURE = re.compile(DECIMAL + r"|(?<![\w.])\d{3,}(?!\w|\.\d)")
"""What must have a source in a table: numbers with decimals, and whole numbers from 100."""
UNITS = (1, 100, 1000, 1e-6)
"""A share may be shown in per cent, seconds in milliseconds, bytes in megabytes."""
Table = tuple[list[str], list[str]]
"""The words of the source line, and the lines below the head."""


def tables(page: str) -> Iterator[Table]:
    """Every table that shows figures, with the words of the source line that it stands under."""
    parts = SOURCE.split(GENERATED.sub("", page))
    for words, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.M):
            rows = block.splitlines()[2:]
            if any(figures_of(cell) for row in rows for cell in cells_of(row)[1:]):
                yield words.split(), rows


def cells_of(row: str) -> list[str]:
    """The cells of a line."""
    return row.strip().strip("|").split("|")


def plain(text: str) -> str:
    """Without links, code and grouped thousands."""
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "", NAMES.sub(" ", text))


def figures_of(text: str) -> list[str]:
    """The figures of a cell without their signs."""
    return FIGURE.findall(plain(text))


def span(figure: str) -> tuple[float, float]:
    """The numbers that round to a figure with as many digits as it has; zeros at the end of a whole number are none."""
    whole, _, decimals = figure.partition(".")
    half = 0.5 * 10 ** (-len(decimals) if decimals else len(whole) - len(whole.rstrip("0"))) + 1e-9
    return float(figure) - half, float(figure) + half


def decimals(page: str) -> list[re.Match[str]]:
    """The decimals in the text of a page, in their order and with their positions; tables and code are no text."""
    for pattern in (GENERATED, HIDDEN, ASIDE, NAMES):
        page = pattern.sub(lambda found: "\0" * len(found.group()), page)
    return list(re.finditer(DECIMAL, page))
