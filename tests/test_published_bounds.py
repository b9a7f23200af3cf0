"""Every certified bound of the published files follows from the losses, gains and prompts that stand beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gistgate.certificates.bounds import EXACT, exact_bound

ROOT = Path(__file__).parents[1]
CONFIDENCE = 0.95
"""Confidence of results that are older than the entry."""
Line = tuple[int, int, int, float, float]


def rows_of(content: Any) -> Iterator[dict[str, Any]]:
    """Every object of a file, however deep it lies."""
    if isinstance(content, dict):
        yield content
    for one in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from rows_of(one)


def line_of(row: dict[str, Any]) -> Line | None:
    """Losses, gains, n, error and published bound of one object; None where it lacks the numbers behind its bound."""
    bound, kind = row.get("value", row.get("bound")), row.get("kind", row.get("bound_kind", EXACT))
    if not isinstance(bound, float) or kind != EXACT or row.get("certified") is False or "n" not in row:
        return None
    error = 1 - row.get("confidence", CONFIDENCE)
    if "losses" in row and "gains" in row:
        return row["losses"], row["gains"], row["n"], error, bound
    if "discordant" in row and "loss" in row:
        net = round(row["loss"] * row["n"])
        return (row["discordant"] + net) // 2, (row["discordant"] - net) // 2, row["n"], error, bound
    return None


PATHS = sorted([*(ROOT / "docs/results").rglob("*.json"), *(ROOT / "benchmarks/results").rglob("*.json")])
FILES = {path.relative_to(ROOT).as_posix(): json.loads(path.read_text()) for path in PATHS}
LINES = {name: {line for row in rows_of(one) if (line := line_of(row))} for name, one in FILES.items()}
NAMED = {name: content for name, content in FILES.items() if "code" in content}
"""Files that are not older than the record of the code, and of the numbers behind a bound."""


@pytest.mark.parametrize("name", [name for name, lines in LINES.items() if lines])
def test_every_certified_bound_can_be_computed_again(name: str):
    for losses, gains, n, error, bound in sorted(LINES[name]):
        assert exact_bound(losses, gains, n, error) == pytest.approx(bound, abs=2e-6), (losses, gains, n)


def test_files_that_name_their_code_hold_the_numbers_behind_every_certificate():
    found = [
        row["bound"] if isinstance(row.get("bound"), dict) else row
        for content in NAMED.values()
        for row in rows_of(content)
        if row.get("certified") is True and row.get("bound_kind", EXACT) == EXACT
    ]
    assert not [row for row in found if line_of(row) is None]
    assert len(found) >= 18, "the first look at the core alone holds as many"


def test_the_bound_of_a_table_is_that_of_its_certificate_and_within_its_budget():
    tables = [
        one["methods"] for one in NAMED.values() if "headline_budget" in one and isinstance(one.get("methods"), dict)
    ]
    assert tables
    for name, method in [item for table in tables for item in table.items()]:
        given = {float(key): one for key, one in method["certificates"].items() if one["certified"]}
        assert method["certified_bound"] == (0.0 if name == "exact" else given.get(method["budget"], {}).get("bound"))
        assert all(one["bound"] <= budget for budget, one in given.items())
