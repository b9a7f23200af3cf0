"""Labels with their features as one matrix, read from data/features and checked where they enter.

Axis letters: N rows (one mismatch each), F features side by side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gistgate.core.features import SCALARS
from gistgate.core.files import load_tensors
from gistgate.core.utils import UserError
from pipeline.labels.schema import ROWS, Table, checked, concatenated, feature_columns
from pipeline.params import TrainParams
from pipeline.run import shard_files

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Rows:
    """Mismatches with features and labels; every tensor has leading axis N."""

    x: Tensor  # features side by side [N, F], float32
    scalars: Tensor  # the feature `scalars` [N, len(SCALARS)], float32; the training-free references judge by it
    problem: Tensor  # which training prompt the mismatch comes from [N]
    policy: Tensor  # whose text the mismatch lies on, a Policy [N]
    kept: Tensor  # probability that the meaning is kept [N], the label
    kl: Tensor  # KL(p || q) in nats [N], nan without a draft distribution

    def __len__(self) -> int:
        return len(self.kept)

    def where(self, chosen: Tensor) -> Rows:
        """The rows of a mask or an index."""
        return Rows(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def scalar(self, name: str) -> Tensor:
        """One column of `scalars` by name [N]."""
        return self.scalars[:, SCALARS.index(name)]


def rows_of(table: Table, features: Sequence[str]) -> Rows:
    """The rows of a table with these features side by side."""
    x = torch.cat([table[name] for name in features], dim=-1)
    return Rows(x, table["scalars"], table["problem"], table["policy"], table["kept"], table["kl"])


def read_rows(folders: Sequence[Path], features: Sequence[str]) -> tuple[Rows, dict[str, int]]:
    """All rows of some folders of data/features, and the width of every feature."""
    wanted = tuple(dict.fromkeys((*features, "scalars")))
    columns = {**ROWS, **feature_columns(wanted)}
    tables: list[Table] = []
    for folder in folders:
        for file in shard_files(folder):
            table = load_tensors(file)
            if len(table["kept"]):
                checked(table, columns, file)
                tables.append({name: table[name] for name in columns})
    if not tables:
        raise UserError(f"{', '.join(map(str, folders))}: no label at all. Raise prompts.train in params.yaml.")
    table = concatenated(tables)
    del tables  # no more than two copies are in memory at any time
    return rows_of(table, features), {name: table[name].shape[-1] for name in features}


@dataclass(frozen=True)
class ProblemParts:
    """Masks over the rows [N]; every row is in exactly one, and no problem is in two."""

    train: Tensor  # fits the head
    validation: Tensor  # stops the training of Lightning heads; the logistic head, which cross-validates, trains on it
    calibration: Tensor  # fits the probability map
    test: Tensor  # measures the head and does nothing else


def split_by_problem(problem_N: Tensor, params: TrainParams, seed: int) -> ProblemParts:
    """Divide the rows by the hash of their problem, so that labels of another policy fall into the same parts."""
    problems = sorted(problem_N.unique().tolist(), key=lambda p: hashlib.sha256(f"{seed}:{p}".encode()).digest())
    if (total := len(problems)) < 4:
        raise UserError(f"Labels of {total} problems cannot be split into four parts. Take more problems.")
    parts = {}
    for name in ("test", "calibration", "validation"):
        num = min(max(1, round(getattr(params, f"{name}_share") * total)), len(problems) - 1)
        parts[name] = torch.isin(problem_N, torch.tensor(problems[:num]))
        problems = problems[num:]
    return ProblemParts(train=torch.isin(problem_N, torch.tensor(problems)), **parts)


def as_classes(kept_N: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Soft labels for estimators that know only classes; rows without weight are left out.

    Row index, class (1: kept) and weight, each [M] with N <= M <= 2 N.
    """
    rows = np.arange(len(kept_N))
    index, label = np.concatenate([rows, rows]), np.repeat([1, 0], len(kept_N))
    weight = np.concatenate([kept_N, 1 - kept_N])
    some = weight > 0
    return index[some], label[some], weight[some]
