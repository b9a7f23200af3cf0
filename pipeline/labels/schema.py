"""The tables on the way from a mismatch to a gate head: their columns, and the check at every door.

    data/mismatches/<pass>   MISMATCHES   where target and draft differ; the stage `collect` writes it
    data/labels/<pass>       LABELS       the same rows with P(the meaning is kept); the stage `label` writes it
    data/features/<goal>     FEATURES     the labels with all that a head sees; the stage `features` writes it

The first two hold the texts of their rows as well (pipeline/labels/texts.py).

Axis letters: N rows (one mismatch each), K drafted tokens of a block, F width of a feature.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from gistgate.errors import UserError
from pipeline.common import paths
from pipeline.labels.tables import Table

REFERENCE = paths.reference_of("train")
"""The target's own answers to the training prompts."""
PASSES = ("strict", "gated")
"""Passes of `collect`: strict and sequential texts first, then the texts of the pilot gate."""
MISMATCH_FOLDER, LABEL_FOLDER, FEATURE_FOLDER = paths.MISMATCHES, paths.LABELS, paths.FEATURES


class Policy(IntEnum):
    """Whose text a mismatch lies on."""

    STRICT = 0
    """The target's own text."""
    SEQUENTIAL = 1
    """The target's text with the harmless draft tokens kept (arXiv 2504.20039)."""
    GATED = 2
    """The text of a gate."""


@dataclass(frozen=True)
class Column:
    """What a column holds; the range includes both ends."""

    dtype: torch.dtype
    low: float = -math.inf
    high: float = math.inf
    axes: int = 1
    may_be_nan: bool = False


PLACE = {
    "problem": Column(torch.int64, 0),  # index of the training prompt
    "policy": Column(torch.int8, 0, len(Policy) - 1),  # whose text, a Policy
    "position": Column(torch.int64, 0),  # answer tokens in front of the mismatch
}
"""Which text a row lies on, and where."""

BLOCK = {
    "draft_id": Column(torch.int64, 0),  # x, the draft token
    "target_id": Column(torch.int64, 0),  # t*, the target's most probable token
    "behind": Column(torch.int32, -1, axes=2),  # [N, K - 1] draft tokens behind x in its block, then -1
}
"""What stood in the block from the mismatch on; enough to read it again."""

MISMATCHES = {
    **PLACE,
    **BLOCK,
    "accepted": Column(torch.int8, 0, 1),  # 1 where the rule of this pass accepted x
    "greedy_kept": Column(torch.int8, -1, 1),  # as in LABELS; -1 where no rollout has been made yet
}
LABELS = {
    **PLACE,
    **BLOCK,
    "greedy_kept": Column(torch.int8, 0, 1),  # 1 where the greedy rollout behind x keeps the meaning
    "kept": Column(torch.float32, 0, 1),  # the label: probability that x keeps the meaning
    "rollouts": Column(torch.int16, 1),  # rollouts behind the label
}
ROWS = {
    **PLACE,
    "kept": Column(torch.float32, 0, 1),  # the label
    "kl": Column(torch.float32, may_be_nan=True),  # KL(p || q) in nats; nan without draft probabilities
}
"""What a head's training needs beside the features."""
FEATURES = {**ROWS, "same_target": Column(torch.int8, 0, 1)}  # 0 where t* differs when read again: a near tie


def feature_columns(names: Iterable[str]) -> dict[str, Column]:
    """The columns [N, F] of features, by id; their units are those of gistgate.gates.features."""
    return {name: Column(torch.float32, axes=2) for name in names}


REPEAT = "Repeat the stage that writes it."
"""What helps a reader of a damaged file."""


def checked(table: Table, columns: Mapping[str, Column], where: object, remedy: str = REPEAT) -> Table:
    """The table, once every column is there, equally long, of its dtype, finite and in range.

    Raises:
        UserError: one sentence that names the file, the column and the first bad row.
    """
    missing = [name for name in columns if name not in table]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}. {remedy}")
    num = len(table[next(iter(columns))])
    for name, column in columns.items():
        problem = problem_of(table[name], column, num)
        if problem:
            raise UserError(f"{where}: '{name}' {problem}. {remedy}")
    return table


def problem_of(values: Tensor, column: Column, num: int) -> str | None:
    """What is wrong with the values of a column, as the rest of a sentence; None where nothing is."""
    if len(values) != num:
        return f"has {len(values)} rows, the first column has {num}"
    if values.dtype != column.dtype or values.ndim != column.axes:
        return f"holds {values.dtype} with {values.ndim} axes, not {column.dtype} with {column.axes}"
    known = values.isfinite() | (values.isnan() if column.may_be_nan else False)
    for fine, what in ((known, "not finite"), (in_range(values, column) | ~known, "out of range")):
        bad = (~fine).flatten(1).any(-1).nonzero() if values.ndim > 1 else (~fine).nonzero()
        if len(bad):
            return f"is {what} in {len(bad)} rows, the first is row {int(bad[0])}"
    return None


def in_range(values: Tensor, column: Column) -> Tensor:
    """Where the values lie in the column's range; nan does."""
    return ~((values < column.low) | (values > column.high))
