"""The counts of benchmarks/results/reliability.json, to which each command adds its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.files import read_json, write_json

RESULTS = Path(__file__).parents[2] / "benchmarks/results/reliability.json"


def add(**found: Any) -> None:
    """Put counts in place of those of an earlier run; other counts stay."""
    write_json(RESULTS, {**(read_json(RESULTS) if RESULTS.exists() else {}), **found})
