"""Calibration prompts that were judged: another look at one of them for the same claim is refused,
or paid for.

Repeating a look spends nothing; any other pays from what the earlier looks left of the error
(docs/certificates.md).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from gistgate.certificates.bounds import GAMMA
from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError

LOCAL = Path(".gistgate/judged.json")  # every look that was taken in this folder; not in Git
PUBLISHED = Path(
    "docs/results/judged.json"
)  # the looks whose results were published, in the same form
LEAST_ERROR = 2 * GAMMA  # error of a look that can be tested; a plan for less would never end


@dataclass(frozen=True)
class Look:
    """One test of one claim on one set of calibration prompts."""

    claim: str  # pair, task, score and method, in one line
    marks: Sequence[
        str
    ]  # hashes of the prompts (`hash_of`), and of their problems, which no template changes
    spent: float  # probability of a false certificate that the test is allowed
    # the same of all looks of the claim at these prompts together; the smallest that one of them
    # says
    error: float
    # fingerprint of the parameters that lead to the tested settings; empty where nobody knows them
    choice: str = ""
    # fingerprint of what is tested, see `gistgate.certificates.calibration`; empty: repeats nothing
    tested: str = ""
    remedy: str = "Draw fresh calibration prompts."  # how that is done, as a sentence

    @property
    def row(self) -> dict[str, Any]:
        """The entry of the file; `marks` names an entry of its own, because many claims share their
        prompts.
        """
        known = {
            "claim": self.claim,
            "marks": digest(sorted(set(self.marks)))[:16],
            "spent": round(self.spent, 12),
        }
        return {
            **known,
            "error": round(self.error, 12),
            "choice": self.choice,
            "tested": self.tested,
        }

    def repeats(self, row: dict[str, Any]) -> bool:
        """Whether a look that was taken is the same test as this one."""
        own = self.row
        same = all(own[key] == row[key] for key in ("claim", "marks", "spent"))
        return same and any(own[key] and own[key] == row[key] for key in ("choice", "tested"))


def check(look: Look, *paths: Path) -> None:
    """Refuse a look at judged prompts that is no repetition and costs more error than is left
    (default: both files).
    """
    for path in paths or (LOCAL, PUBLISHED):
        sets, rows = read_looks(path)
        before = [
            row
            for row in rows
            if row["claim"] == look.claim and not sets[row["marks"]].isdisjoint(look.marks)
        ]
        if any(look.repeats(row) for row in before):
            continue
        whole = min([look.error, *(row["error"] for row in before)])
        spent = sum(row["spent"] for row in before)
        if before and look.spent > whole - spent + 1e-9:  # rounding of the sum
            raise UserError(
                f"The calibration prompts have already been judged for '{look.claim}' with another"
                f" choice of settings, which spent {spent:.3g} of the error {whole:.3g};"
                f" {max(whole - spent, 0):.3g} are left and this look wants {look.spent:.3g}."
                f" {look.remedy}"
            )


def record(look: Look) -> None:
    """Check a look and enter it into the file of this folder, before its result is seen."""
    check(look)
    LOCAL.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(LOCAL.with_name(f".{LOCAL.name}.lock")):  # methods are calibrated side by side
        check(look, LOCAL)
        sets, rows = read_looks(LOCAL)
        if not any(look.repeats(row) for row in rows):
            sets[look.row["marks"]] = set(look.marks)
            marks = {name: " ".join(sorted(found)) for name, found in sets.items()}
            write_json(LOCAL, {"looks": [*rows, look.row], "marks": marks})


def read_looks(path: Path) -> tuple[dict[str, set[str]], list[dict[str, Any]]]:
    """The sets of marks by their names, and the looks of a file; none where there is no file."""
    if not path.exists():
        return {}, []
    content = read_json(path)
    return {name: set(marks.split()) for name, marks in content["marks"].items()}, list(
        content["looks"]
    )


def judged_marks() -> set[str]:
    """Marks of the prompts that a pipeline judged; unlike commands, its looks say their choice."""
    files = [read_looks(path) for path in (LOCAL, PUBLISHED)]
    return {
        mark for sets, rows in files for row in rows if row["choice"] for mark in sets[row["marks"]]
    }


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
