"""The counts of benchmarks/results/reliability.json, to which each command adds its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.files import write_json_lines
from pipeline.common.code import add_to_result, running

RESULTS = Path(__file__).parents[2] / "benchmarks/results/reliability.json"
DISTURBANCES = RESULTS.with_name("disturbances.jsonl")


def add(**found: Any) -> None:
    """Put counts in place of those of an earlier run; other counts stay, each with the code that found it."""
    shown = [DISTURBANCES] if DISTURBANCES.exists() else []
    add_to_result(RESULTS, found, running(), files=shown)


def write_disturbances(lines: list[dict[str, Any]]) -> None:
    """Publish a line for each disturbance of the pipeline."""
    write_json_lines(DISTURBANCES, lines)
