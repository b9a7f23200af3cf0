"""Laps of an unfinished race, so that an interruption loses the lap that is under way.

Every lap has all contenders side by side, so that ratios stay fair where a race goes on at another hour.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gistgate.files import read_json, write_json
from pipeline.speed.clock import Contender, Timed


class KeptLaps:
    """A folder with a file for each finished lap, and one for each choice that was made before the race."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def chosen(self, name: str, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `choose` found under this name, in this start or in an earlier one."""
        return self._kept(f"chosen-{name}.json", choose)

    def lap(
        self, place: int, field: Sequence[Contender], decode: Callable[[], dict[str, list[Timed]]]
    ) -> dict[str, list[Timed]]:
        """The times of one batch. A lap with other contenders is decoded again."""
        name = f"lap-{place:05d}.json"

        def told() -> dict[str, list[dict[str, Any]]]:
            return {contender: [asdict(run) for run in runs] for contender, runs in decode().items()}

        found = self._kept(name, told)
        if set(found) != {contender.name for contender in field}:
            (self.folder / name).unlink()
            found = self._kept(name, told)
        return {contender: [Timed(**run) for run in runs] for contender, runs in found.items()}

    def _kept(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if not (self.folder / name).exists():
            write_json(self.folder / name, make())
        found: dict[str, Any] = read_json(self.folder / name)
        return found

    def remove(self) -> None:
        """Forget all laps, once their results are written."""
        shutil.rmtree(self.folder, ignore_errors=True)
