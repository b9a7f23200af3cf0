"""The answers of two servers in a file, so that nothing that was paid for is lost."""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from gistgate.certify.answers import Pair, Served
from gistgate.certify.endpoint import note
from gistgate.core.utils import UserError


class AnswerStore:
    """Answers and refusals by the mark of what was asked, in a file that no run removes."""

    def __init__(self, path: Path, marks: Collection[str], resume: bool) -> None:
        """Read the file; without `resume`, answers to what has these `marks` are not used, and
        `begin` moves them aside.
        """
        self.path = path
        self.pairs: dict[str, list[Pair]] = {}
        self.refusals: dict[str, str] = {}
        self.run = ""
        """Tells these answers from those of another run."""
        self.read()
        self.is_named = bool(self.run)
        self.has_earlier = any(mark in self.pairs for mark in marks)
        self.is_stale = self.has_earlier and not resume
        if self.is_stale:
            self.pairs.clear()
            self.refusals.clear()
        if self.is_stale or not self.is_named:
            self.run = uuid4().hex[:16]

    def read(self) -> None:
        """Take in the lines of the file, but for one that an interruption cut."""
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                for mark, entry in json.loads(line).items():
                    if mark == "run":
                        self.run = entry
                    elif isinstance(entry, str):
                        self.refusals[mark] = entry
                    else:
                        self.pairs[mark] = [
                            (Served.read(strict), Served.read(loose)) for strict, loose in entry
                        ]

    def begin(self) -> None:
        """Make the file if there is none; answers that are not used get a name of their own."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.is_stale:
            number = 1
            while (aside := self.path.with_name(f"{self.path.stem}-{number}.jsonl")).exists():
                number += 1
            self.path.rename(aside)
            note(
                f"Answers of an earlier run to these prompts are moved to {aside}. To use such"
                " answers, add --resume."
            )
        if self.is_stale or not self.is_named:
            self.write({"run": self.run})

    def add(self, mark: str, pairs: list[Pair]) -> None:
        """Keep the answers to one document."""
        self.pairs[mark] = pairs
        self.write({mark: [[asdict(strict), asdict(loose)] for strict, loose in pairs]})

    def refuse(self, mark: str, cause: str) -> None:
        """Keep that a server refused one document."""
        self.refusals[mark] = cause
        self.write({mark: cause})

    def write(self, entry: dict[str, Any]) -> None:
        """Add a line, behind one that an interruption cut."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps(entry))
        except OSError as error:
            raise UserError(
                f"{self.path} takes no further answers ({error.strerror}). Free some space or check"
                " the permissions, and repeat with --resume."
            ) from error
