"""Every certified bound of the published files follows from the losses, gains and prompts that stand beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gistgate.certificates.bounds import EXACT
from gistgate.certificates.ledger import Ledger
from gistgate.certificates.tango import exact_bound

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


def test_the_present_files_hold_lines():
    """The published certificates of `make certify` at least; an empty list would let the test above pass."""
    assert {path.parent.name for path in HOLDING} >= {"certify"}


def test_summaries_that_name_their_code_hold_the_numbers_behind_every_bound():
    for path in (ROOT / "docs/results").rglob("summary.json"):
        content = json.loads(path.read_text())
        if "code" not in content or "headline_budget" not in content:
            continue  # older than the record, or a study with another form
        for method in content["methods"].values():
            if method["knob"] is not None:
                assert {"losses", "gains", "n", "capped"} <= set(method["certificates"][f"{method['budget']:g}"])


def test_a_wrong_bound_is_noticed():
    row = {"certified": True, "n": 1000, "losses": 10, "gains": 5, "confidence": 0.95, "bound": 0.001}
    (losses, gains, n, error, bound) = next(lines({"a": [row]}))
    assert exact_bound(losses, gains, n, error) > bound + 2e-6


def test_the_published_ledger_is_whole():
    Ledger.read(ROOT / "docs/results/looks.json")
