"""The settings of the segment stages; pipeline/studies/segments/params.yaml says what each means."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from gistgate.errors import UserError
from gistgate.optional.segments.probes import POOLINGS

FILE = Path("pipeline/studies/segments/params.yaml")
JUDGES = ("answer", "exact", "truth", "nli", "embedding")
LOSSES = ("bce", "mse")


@dataclass(frozen=True)
class SegmentParams:
    """pipeline/studies/segments/params.yaml."""

    style: str
    limit: int
    problems: int
    prefixes: int
    samples: int
    temperature: float
    judge: str
    judge_model: str | None
    similarity: float
    shard_problems: int
    pooling: str
    loss: str
    hidden: int
    epochs: int
    patience: int
    lr: float
    batch_size: int
    head: str
    risk: float
    reward_model: str | None

    def __post_init__(self) -> None:
        for name, known in (("judge", JUDGES), ("pooling", POOLINGS), ("loss", LOSSES)):
            if getattr(self, name) not in known:
                raise UserError(f"{FILE}: {name} is {getattr(self, name)!r}. Use one of: {', '.join(known)}.")
        if self.judge in ("nli", "embedding") and not self.judge_model:
            raise UserError(f"{FILE}: the judge '{self.judge}' needs a model. Name one by judge_model.")
        if self.samples < 2 or self.limit < 2 or self.prefixes < 1 or not self.temperature > 0:
            raise UserError(f"{FILE}: samples and limit are 2 or more, prefixes 1 or more, temperature above 0.")


def local_models(*names: str | None) -> list[Path]:
    """The folders among models that may also be hub ids; fingerprints take them in."""
    return [Path(name) for name in names if name and Path(name).is_dir()]


def read_segment_params(path: Path = FILE) -> SegmentParams:
    """Read the file.

    Raises:
        UserError: it is missing, or a key is unknown, missing or out of range.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing. Restore it.")
    values = yaml.safe_load(path.read_text())
    known = {field.name for field in fields(SegmentParams)}
    if not isinstance(values, dict) or values.keys() != known:
        wrong = ", ".join(sorted(known ^ set(values or ())))
        raise UserError(f"{path} has unknown or missing keys ({wrong}). Correct them.")
    return SegmentParams(**values)
