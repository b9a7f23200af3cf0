"""The moments at which a process is disturbed, as events of Python's audit hooks, and how they are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

RANDOM = "at random"
"""Any time between the start of the process and its end."""


@dataclass(frozen=True)
class Moment:
    """A kind of event in one kind of process."""

    name: str
    event: str
    path: str
    """Pattern of the file's name."""
    when: str = "now"
    """"now": before the event; "next": before the next event; "torn": with half of the file written."""
    spread: float = 0.0
    """Seconds within which it strikes behind the event."""
    of_dvc: bool = False
    """Whether it concerns DVC itself and not a stage."""

    def fits(self, event: str, values: tuple[Any, ...]) -> bool:
        """Whether an audited event is such a moment; of openings only those that write."""
        if event != self.event or (not isinstance(values[0], (str, bytes)) and not hasattr(values[0], "__fspath__")):
            return False
        if event == "open" and not re.search("[wxa+]", str(values[1] or "")):
            return False
        name = values[1] if event == "os.rename" and self.of_dvc else values[0]
        return re.search(self.path, str(name)) is not None


MOMENTS = (
    Moment("while a temporary file is written", "open", r"\.part$|\.part/", spread=0.002),
    Moment("between writing and renaming", "os.rename", r"\.part$"),
    Moment("just after a rename", "os.rename", r"\.part$", when="next"),
    Moment("in the middle of a shard", "os.rename", r"rows-\d+\.safetensors", spread=0.5),
    Moment("while a checkpoint is written", "open", r"\.ckpt", spread=0.01),
    Moment("while MLflow writes", "sqlite3.connect", r"mlflow\.db", spread=0.3),
    Moment("while DVC writes its lock file", "open", r"dvc\.lock$", when="torn", of_dvc=True),
    Moment("while DVC writes its list of running commands", "open", r"rwlock$", when="torn", of_dvc=True),
    Moment("while DVC moves files into its cache", "os.rename", r"\.dvc/cache/", of_dvc=True),
    Moment("while DVC removes old outputs", "os.remove", r"/(data|models|reports)/", of_dvc=True),
)
OF_STAGE = (
    "kill the stage",
    "kill DVC and the stage",
    "interrupt",
    "full disk",
    "limit of address space",
    "limit of memory",
)
OF_DVC = ("kill DVC", "interrupt", "full disk")


def draw(chance: Random, stage: str, command: str, census: dict[str, dict[str, Any]], time: int) -> dict[str, Any]:
    """Disturbance `time` of a stage: the process, the moment and the way.

    The first two and every third one strike the DVC that runs it, others the stage itself.
    """
    of_dvc = time < 2 or time % 3 == 0
    process = f"pipeline.repro {stage}" if of_dvc else command
    counts = census["pipeline.repro" if of_dvc else command]["counts"]
    possible = [moment for moment in MOMENTS if moment.of_dvc == of_dvc and counts.get(moment.name)]
    moment = chance.choice([*possible, None])
    way = "kill DVC" if moment and moment.when == "torn" else chance.choice(OF_DVC if of_dvc else OF_STAGE)
    spread = moment.spread if moment else (4.0 if of_dvc else census[command]["seconds"]) / (1 + time)
    return {
        "stage": stage,
        "process": process,
        "moment": moment.name if moment else RANDOM,
        # Behind an earlier disturbance less is left to do, so that only the first moments are sure to come.
        "count": chance.randint(1, 1 if time or of_dvc else min(counts[moment.name], 3)) if moment else 0,
        "delay": round(chance.uniform(0.0, spread), 4),
        "share": round(chance.random(), 2),
        "way": way,
        "room": chance.choice((0, 4 << 10, 64 << 10)) if way == "full disk" else chance.choice((1, 4, 16)) << 20,
    }
