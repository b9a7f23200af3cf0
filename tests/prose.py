"""Decimals in the text of a page against tests/prose.yaml, which says where each of them stands.

Below the name of a page every decimal of its text has a line, in order: `8.35 = FILE > key > key`, a place in a JSON
file. `1.29 = PLACE / PLACE` is a ratio. `0.4 = set` is nothing measured here: a setting, an aim, a version, or a figure
of somebody else.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml

from tests import sources

SET = "set"


@cache
def listed() -> dict[str, list[tuple[str, str]]]:
    """The figures of every page, with what the list says about them."""
    content = yaml.safe_load((sources.ROOT / "tests/prose.yaml").read_text())
    return {page: [tuple(line.split(" = ", 1)) for line in lines] for page, lines in content.items()}


def problems(name: str, page: str) -> list[str]:
    """What is wrong with the decimals in the text of a page: the first that the list does not have, or wrong values."""
    found, expected = [one.group() for one in sources.decimals(page)], listed().get(name, [])
    names = [figure for figure, _ in expected]
    if found != names:
        at = next((i for i, pair in enumerate(zip(found, names)) if pair[0] != pair[1]), min(len(found), len(names)))
        return [f"figure {at + 1}: the page has {found[at : at + 3]}, the list {names[at : at + 3]}"]
    return [f"{figure} = {place}" for figure, place in expected if not shows(figure, place)]


def shows(figure: str, place: str) -> bool:
    """Whether the number at a place rounds to the figure, in one of the units."""
    if place == SET:
        return True
    low, high = sources.span(figure)
    return any(low <= abs(value(place)) * unit <= high for unit in sources.UNITS)


def value(place: str) -> float:
    """The number at a place, or the ratio of two."""
    above, *below = place.split(" / ")
    return number(above) / number(below[0]) if below else number(above)


def number(place: str) -> float:
    """The number at one place."""
    file, *keys = place.split(" > ")
    part: Any = content(file)
    for key in keys:
        part = part[int(key) if isinstance(part, list) else key]
    return float(part)


@cache
def content(file: str) -> Any:
    """A JSON file."""
    return json.loads((sources.ROOT / file).read_text())
