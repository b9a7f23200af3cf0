"""Calibration prompts that were judged: another look at one of them for the same claim is refused,
or paid for.

Repeating a look spends nothing; any other pays from what the earlier looks left of the error
(docs/certificates.md).
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from gistgate.certificates.bounds import GAMMA
from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.gate import Gate

LEAST_ERROR = 2 * GAMMA  # error of a look that can be tested; a plan for less would never end


@dataclass(frozen=True)
class Look:
    """One test of one claim on one set of calibration prompts."""

    claim: str
    """Pair, task, score and method, in one line."""
    marks: Sequence[str]
    """Hashes of the prompts (`hash_of`), and of their problems, which no template changes."""
    spent: float
    """Probability of a false certificate that the test is allowed."""
    error: float
    """The same of all looks of the claim at these prompts together; the smallest that a look of
    them says counts."""
    choice: str = ""
    """Fingerprint of the parameters that lead to the tested settings; empty where nobody knows
    them."""
    tested: str = ""
    """Fingerprint of what is tested, see `gistgate.certificates.calibration`; empty: repeats
    nothing."""
    remedy: str = "Draw fresh calibration prompts."
    """How that is done, as a sentence."""

    @property
    def row(self) -> dict[str, Any]:
        """The entry of the file; `marks` names an entry of its own, because many claims share their
        prompts.
        """
        return {
            "claim": self.claim,
            "marks": digest(sorted(set(self.marks)))[:16],
            "spent": round(self.spent, 12),
            "error": round(self.error, 12),
            "choice": self.choice,
            "tested": self.tested,
        }

    def repeats(self, row: dict[str, Any]) -> bool:
        """Whether a look that was taken is the same test as this one."""
        mine = self.row
        if any(mine[key] != row[key] for key in ("claim", "marks", "spent")):
            return False
        return any(mine[key] and mine[key] == row[key] for key in ("choice", "tested"))


@dataclass(frozen=True)
class Ledger:
    """The looks that were taken, in two files of one form; by default those of the working
    folder.
    """

    local: Path = Path(".gistgate/judged.json")
    """Every look that was taken in this folder; not in Git."""
    published: Path = Path("docs/results/judged.json")
    """The looks whose results were published; nothing is written there."""

    def check(self, look: Look) -> None:
        """Refuse a look at judged prompts that is no repetition and costs more error than is
        left.
        """
        for path in (self.local, self.published):
            check_file(path, look)

    def record(self, look: Look) -> None:
        """Check a look and enter it into the file of this folder, before its result is seen."""
        self.check(look)
        self.local.parent.mkdir(parents=True, exist_ok=True)
        lock = self.local.with_name(f".{self.local.name}.lock")
        with FileLock(lock):  # methods are calibrated side by side
            check_file(self.local, look)
            sets, rows = read_looks(self.local)
            if any(look.repeats(row) for row in rows):
                return
            sets[look.row["marks"]] = set(look.marks)
            marks = {name: " ".join(sorted(hashes)) for name, hashes in sets.items()}
            write_json(self.local, {"looks": [*rows, look.row], "marks": marks})

    def looks_at(self, marks: Sequence[str]) -> int:
        """Looks at any of these prompts, of whatever claim."""
        count = 0
        for path in (self.local, self.published):
            sets, rows = read_looks(path)
            count += sum(not sets[row["marks"]].isdisjoint(marks) for row in rows)
        return count

    def judged_marks(self) -> set[str]:
        """Marks of the prompts that a pipeline judged; unlike commands, its looks say their
        choice.
        """
        marks = set[str]()
        for path in (self.local, self.published):
            sets, rows = read_looks(path)
            marks.update(*(sets[row["marks"]] for row in rows if row["choice"]))
        return marks

    def taken_marks(self, gate: Gate | None) -> set[str]:
        """Marks of what pipelines judged and of the problems of a gate, which a gate of an earlier
        version does not name.
        """
        if gate is None:
            return self.judged_marks()
        if not gate.config.problems:
            warnings.warn(
                "The gate does not say which problems it was trained on. If this task has them,"
                " the certificate promises too much. Train the gate again with this version.",
                stacklevel=2,
            )
        return self.judged_marks() | set(gate.config.problems.split())


def check_file(path: Path, look: Look) -> None:
    """Refuse a look that costs more error than the looks in one file left."""
    sets, rows = read_looks(path)
    earlier = [
        row
        for row in rows
        if row["claim"] == look.claim and not sets[row["marks"]].isdisjoint(look.marks)
    ]
    if not earlier or any(look.repeats(row) for row in earlier):
        return
    error = min(look.error, *(row["error"] for row in earlier))
    spent = sum(row["spent"] for row in earlier)
    if look.spent > error - spent + 1e-9:  # rounding of the sum
        raise UserError(
            f"The calibration prompts have already been judged for '{look.claim}' with another"
            f" choice of settings, which spent {spent:.3g} of the error {error:.3g};"
            f" {max(error - spent, 0):.3g} are left and this look wants {look.spent:.3g}."
            f" {look.remedy}"
        )


def read_looks(path: Path) -> tuple[dict[str, set[str]], list[dict[str, Any]]]:
    """The sets of marks by their names, and the looks of a file; none where there is no file."""
    if not path.exists():
        return {}, []
    content = read_json(path)
    sets = {name: set(marks.split()) for name, marks in content["marks"].items()}
    return sets, content["looks"]


def level(confidence: float, looks: int) -> float:
    """Confidence of each look if several looks divide the error; refused where no number of prompts
    reaches it.
    """
    error = (1 - confidence) / looks
    if error <= LEAST_ERROR:
        raise UserError(
            f"A confidence of {confidence:g} over {looks} looks leaves an error of {error:.2g} for"
            " each, which no number of prompts can show. Lower the confidence or the looks until"
            f" more than {LEAST_ERROR:g} is left."
        )
    return 1 - error


def hash_of(prompt: Sequence[int]) -> str:
    """The mark of one prompt, from its token ids [T]; two of 10,000 prompts agree by chance once in
    20,000 files.
    """
    return digest(list(prompt))[:10]


def digest(value: Any) -> str:
    """SHA-256 of a value as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
