"""Run the long sweep of decoders in pieces: a part that has passed is not run again.

    python -m tests.faults.sweep --minutes 30

The parts that have passed are listed in a file, after each of them, so that the sweep can be ended at any moment.
Delete the file when the decoder has changed.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import pytest
import typer

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.common.entry import run
from tests.faults import results

SWEEP = "tests/decoding/test_sweep.py"


class Pieces:
    """A plug-in of pytest that leaves out what has passed, notes what passes, and ends in time."""

    def __init__(self, file: Path, end: float) -> None:
        self.file, self.end = file, end
        self.passed: list[str] = read_json(file) if file.exists() else []
        self.parts: list[str] = []
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the long parts that have not passed."""
        long = [item for item in items if item.get_closest_marker("long")]
        self.parts = [item.nodeid for item in long]
        items[:] = [item for item in long if item.nodeid not in self.passed]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note how a part ended."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)
            write_json(self.file, self.passed)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Begin no part behind the end."""
        if monotonic() > self.end:
            item.session.shouldstop = "the time is over"
            pytest.skip("the time is over")


def main(
    minutes: Annotated[float, typer.Option(help="No further part is begun after so long.")] = 600.0,
    file: Annotated[Path, typer.Option(help="List of the parts that have passed.")] = Path(".scratch/sweep.json"),
) -> None:
    """Run what is left, and publish how much of the sweep has passed."""
    pieces = Pieces(file, monotonic() + 60 * minutes)
    pytest.main(["-q", "-p", "no:cacheprovider", "-n", "0", SWEEP], plugins=[pieces])
    passed = len(set(pieces.passed) & set(pieces.parts))
    results.add(sweep_parts=len(pieces.parts), sweep_passed=passed, sweep_failed=len(set(pieces.failed)))
    print(f"{passed} of {len(pieces.parts)} parts have passed.")
    if pieces.failed:
        raise UserError(f"Parts of the sweep failed: {', '.join(sorted(set(pieces.failed)))}.")


if __name__ == "__main__":
    run(main)
