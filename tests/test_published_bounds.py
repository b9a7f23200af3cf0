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


def lines(content: Any) -> Iterator[Line]:
    """Losses, gains, n, error and published bound of every certified line in a file."""
    if isinstance(content, list):
        for one in content:
            yield from lines(one)
    if not isinstance(content, dict):
        return
    if (line := line_of(content)) is not None:
        yield line
    for one in content.values():
        yield from lines(one)


def line_of(row: dict[str, Any]) -> Line | None:
    """The line that one object holds; None where it holds none, or lacks the numbers behind its bound."""
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


FILES = sorted([*(ROOT / "docs/results").rglob("*.json"), *(ROOT / "benchmarks/results").rglob("*.json")])
HOLDING = [path for path in FILES if any(True for _ in lines(json.loads(path.read_text())))]


@pytest.mark.parametrize("path", HOLDING, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_certified_bound_can_be_computed_again(path: Path):
    for losses, gains, n, error, bound in sorted(set(lines(json.loads(path.read_text())))):
        assert exact_bound(losses, gains, n, error) == pytest.approx(bound, abs=2e-6), (losses, gains, n)


def certified(content: Any) -> Iterator[dict[str, Any]]:
    """Every certificate in a file, by the exact bound, whether or not the numbers behind it stand beside it."""
    for one in content if isinstance(content, list) else content.values() if isinstance(content, dict) else ():
        yield from certified(one)
    if isinstance(content, dict) and content.get("certified") is True and content.get("bound_kind", EXACT) == EXACT:
        yield content["bound"] if isinstance(content.get("bound"), dict) else content


def wrong_headlines(content: dict[str, Any]) -> list[str]:
    """Methods whose bound in the table is not that of their certificate, or lies above its budget."""
    found = []
    for name, method in content["methods"].items():
        given = {float(key): one for key, one in method["certificates"].items() if one["certified"]}
        bound = 0.0 if name == "exact" else given.get(method["budget"], {}).get("bound")
        if bound != method["certified_bound"] or any(one["bound"] > budget for budget, one in given.items()):
            found.append(name)
    return found


NAMED = {path: content for path in FILES if "code" in (content := json.loads(path.read_text()))}
"""Files that are not older than the record of the code, and of the numbers behind a bound."""


def test_files_that_name_their_code_hold_the_numbers_behind_every_certificate():
    rows = {path: list(certified(content)) for path, content in NAMED.items()}
    assert not [(path, row) for path, found in rows.items() for row in found if line_of(row) is None]
    assert sum(map(len, rows.values())) >= 18, "the first look at the core alone holds as many"


def test_the_bound_of_a_table_is_that_of_its_certificate():
    budgeted = {path: one for path, one in NAMED.items() if "headline_budget" in one}
    tables = {path: one for path, one in budgeted.items() if isinstance(one.get("methods"), dict)}
    assert {path: found for path, one in tables.items() if (found := wrong_headlines(one))} == {}
    assert len(tables) >= 1


def test_missing_numbers_and_a_wrong_bound_are_noticed():
    assert {path.parent.name for path in HOLDING} >= {"certify"}, "the published certificates at least"
    content = json.loads((ROOT / "docs/results/summary.json").read_text())
    certificate = content["methods"]["autojudge"]["certificates"]["0.03"]
    del certificate["gains"]
    assert [row for row in certified(content) if line_of(row) is None] == [certificate]
    certificate["bound"] += 0.001
    assert wrong_headlines(content) == ["autojudge"]
    row = {"certified": True, "n": 1000, "losses": 10, "gains": 5, "confidence": 0.95, "bound": 0.001}
    (losses, gains, n, error, bound) = next(lines({"a": [row]}))
    assert exact_bound(losses, gains, n, error) > bound + 2e-6
