"""What was certified about one server against another, seen from outside, as the file `served-certificate.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gistgate.files import write_json

SERVED_FILE = "served-certificate.json"


@dataclass(frozen=True)
class Lengths:
    """What the answers of one server look like, beside their score."""

    capped: float
    """Share of answers that were cut at the longest length."""
    tokens: float | None
    """Mean length in tokens; None where the server does not say it."""
    score: float
    """Mean score."""


@dataclass(frozen=True)
class ServedCertificate:
    """One test of one claim: the loose server loses at most `budget` against the strict one."""

    strict: dict[str, Any]
    """Address, model and request settings of the reference."""
    loose: dict[str, Any]
    """The same of the server that was tested."""
    scope: dict[str, Any]
    """Task, prompts and prompting."""
    budget: float
    """Largest mean loss, in the unit of the score."""
    confidence: float
    """Probability with which the bound holds, over the draw of the prompts."""
    n: int
    """Prompts that were compared."""
    losses: int
    """Prompts on which the loose server scored lower."""
    gains: int
    """Prompts on which it scored higher."""
    differing: int
    """Prompts with different answers, scored alike or not."""
    loss: float
    """Mean of strict - loose score."""
    bound: float
    """One-sided upper bound on that mean."""
    bound_kind: str
    """Which bound it is."""
    certified: bool
    """Whether the bound keeps the budget."""
    strict_answers: Lengths
    loose_answers: Lengths
    refusal: str | None = None
    """Why nothing is certified and what would help; None after a success."""
    made: str = ""
    """Date in UTC."""

    def save(self, folder: str | Path) -> Path:
        """Write `served-certificate.json` into a folder and return its path."""
        path = Path(folder) / SERVED_FILE
        write_json(path, asdict(self))
        return path
