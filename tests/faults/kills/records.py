"""What was disturbed, how it ended, and which passes over the pipeline ended in the expected artefacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.files import read_json, read_json_lines, write_json, write_json_lines

EMPTY: dict[str, Any] = {"pass": 0, "stage": 0, "open": False, "passes": []}


class Records:
    """A line for each disturbance, and where the present pass stands; both survive the end of this process."""

    def __init__(self, folder: Path) -> None:
        self.file, self.state_file = folder / "records.jsonl", folder / "state.json"
        self.lines = read_json_lines(self.file) if self.file.exists() else []
        self.state = read_json(self.state_file) if self.state_file.exists() else dict(EMPTY)

    def begin(self) -> None:
        """A new pass begins; disturbances of one whose copy is gone were never compared and do not count."""
        if self.state["open"]:
            self.lines = [line for line in self.lines if line["pass"] != self.state["pass"]]
        self.state.update(open=True, stage=0, **{"pass": self.state["pass"] + 1})
        self.write()

    def add(self, line: dict[str, Any]) -> None:
        """One more disturbance."""
        self.lines.append({"pass": self.state["pass"], "number": len(self.lines) + 1, **line})
        self.write()

    def step(self) -> None:
        """The next stage's turn."""
        self.state["stage"] += 1
        self.write()

    def close(self, **found: Any) -> None:
        """The pass has ended and was compared."""
        self.state["passes"].append({"pass": self.state["pass"], **found})
        self.state["open"] = False
        self.write()

    def write(self) -> None:
        write_json_lines(self.file, self.lines)
        write_json(self.state_file, self.state)

    def struck(self) -> list[dict[str, Any]]:
        """The disturbances that came to their moment."""
        return [line for line in self.lines if line["struck"]]

    def lost(self) -> int:
        """Disturbances after which something was lost.

        All of a pass that did not end in the expected artefacts, and those that left an unreadable artefact or a
        pipeline that would not start again.
        """
        bad = {one["pass"] for one in self.state["passes"] if one["status"] or one["differing"]}
        return sum(line["pass"] in bad or bool(line["unreadable"] or line["stuck"]) for line in self.struck())
