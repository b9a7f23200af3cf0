"""Rewrite the decimals in the text of pages after a publication, each from its place in tests/prose.yaml.

    python -m tests.renew README.md docs/performance.md

A figure keeps its number of digits and its unit. Sentences stay as they are: whoever publishes reads whether they are
still true. Pages are checked against the list first; a decimal that the list does not have has to be entered by hand.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from tests import prose, sources

LIST = Path("tests/prose.yaml")


def main(names: list[str]) -> None:
    for name in names:
        page = (sources.ROOT / name).read_text()
        rows = prose.listed().get(name, [])
        figures = [figure for figure, _ in rows]
        found = sources.decimals(page)
        if [one.group() for one in found] != figures:
            raise SystemExit(f"{name}: {prose.problems(name, page)[0]}. Bring {LIST} and the page together first.")
        present = [as_now(figure, place) for figure, place in rows]
        for one, figure in reversed(list(zip(found, present, strict=True))):
            page = page[: one.start()] + figure + page[one.end() :]
        (sources.ROOT / name).write_text(page)
        old, new = (lines(name, shown, rows) for shown in (figures, present))
        content = (sources.ROOT / LIST).read_text()
        (sources.ROOT / LIST).write_text(content.replace(old, new, 1))
        print(f"{name}: {sum(was != now for was, now in zip(figures, present, strict=True))} figures renewed")


def as_now(figure: str, place: str) -> str:
    """What a figure is now, in the unit in which it was shown."""
    if place == prose.SET:
        return figure
    number = abs(prose.value(place))
    shown = min((number * unit for unit in sources.UNITS), key=lambda value: far(value, float(figure)))
    return f"{shown:.{len(figure.partition('.')[2])}f}"


def far(one: float, other: float) -> float:
    """How far apart two figures are, as a ratio; the same unit is the nearest."""
    least = 1e-9
    return abs(math.log(max(one, least) / max(other, least)))


def lines(name: str, figures: list[str], rows: list[tuple[str, str]]) -> str:
    """A page's part of the list, with these figures."""
    return "\n".join([f"{name}:", *(f'- "{one} = {place}"' for one, (_, place) in zip(figures, rows, strict=True))])


if __name__ == "__main__":
    main(sys.argv[1:])
