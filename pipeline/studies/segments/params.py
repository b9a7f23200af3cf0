"""The settings of the segment stages; pipeline/studies/segments/params.yaml says what each means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from gistgate.errors import UserError
from pipeline.common.paths import STUDIES
from pipeline.common.reading import Count, Natural, Number, Share, between, block, read

FILE = STUDIES / "segments/params.yaml"
LOSSES = ("bce", "mse")


@block
class SegmentParams:
    """The study's file. Every key has to stand there, because fingerprints and DVC see the file alone."""

    style: str
    """Where a segment ends: blank-line, sentence, step, or `re:` and a pattern."""
    limit: Annotated[int, between(2)]
    """Longest segment, in tokens; a segment that is cut there is not judged."""
    problems: Count
    """Training problems whose texts are cut into prefixes."""
    prefixes: Count
    """Prefixes of each problem: one at a segment's end, the others anywhere."""
    samples: Annotated[int, between(2)]
    """Segments that each model writes behind each prefix."""
    temperature: Annotated[Number, between(1e-6)]
    """Temperature of these samples."""
    judge: Literal["answer", "exact", "truth", "nli", "embedding"]
    """Whose groups are the labels."""
    judge_model: str | None
    """Model of the judges nli and embedding; None for the others."""
    similarity: Share
    """Least cosine of two texts in one group of the judge embedding."""
    shard_problems: Count
    """Problems per shard."""
    pooling: Literal["mean", "last", "attention"]
    """Pooling of the exported probes."""
    loss: Literal["bce", "mse"]
    """Loss of the exported probes."""
    hidden: Count
    """Width of the probes' hidden layer."""
    epochs: Count
    """Passes over the samples, at most."""
    patience: Natural
    """Epochs without a better validation loss after which training stops."""
    lr: Annotated[Number, between(0)]
    """Learning rate."""
    batch_size: Count
    """Samples per optimiser step."""
    head: str
    """Token gate inside refused segments, a head of models/heads."""
    risk: Share
    """Tolerated P(harm) of that gate."""
    reward_model: str | None
    """Model of the control prm; None leaves the control out."""

    def __post_init__(self) -> None:
        if self.judge in ("nli", "embedding") and not self.judge_model:
            raise UserError(f"{FILE}: the judge '{self.judge}' needs a model. Name one by judge_model.")


def local_models(*names: str | None) -> list[Path]:
    """The folders among models that may also be hub ids; fingerprints take them in."""
    return [Path(name) for name in names if name and Path(name).is_dir()]


def read_segment_params(path: Path = FILE) -> SegmentParams:
    """Read the file.

    Raises:
        UserError: it is missing, or a key is unknown, missing or out of range.
    """
    return read(SegmentParams, path)
