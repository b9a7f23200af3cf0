"""Labelled mismatches, read from the shards that the stage `label` wrote and checked where they enter.

Axis letters: N rows (one mismatch each), F features side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from gistgate.errors import UserError
from gistgate.files import load_tensors
from gistgate.gates.features import SCALARS

POLICIES = ("strict", "sequential", "gated")
"""Names of the values of `prefix`: on whose text the mismatch lies."""

COLUMNS = {"problem": torch.int64, "prefix": torch.int64, "kept": torch.float32, "kl": torch.float32}
"""Columns of a label file beside the features, and the dtype they are used in."""


@dataclass(frozen=True)
class Rows:
    """Mismatches with features and labels; every tensor has leading axis N."""

    x: Tensor
    """Features side by side [N, F], float32."""
    scalars: Tensor
    """The feature `scalars` [N, len(SCALARS)], float32: what the training-free references judge by."""
    problem: Tensor
    """Which training prompt the mismatch comes from [N]."""
    prefix: Tensor
    """Index into POLICIES [N]."""
    kept: Tensor
    """Probability that the meaning is kept [N], the label."""
    kl: Tensor
    """KL(p || q) [N], nan without a draft distribution."""

    def __len__(self) -> int:
        return len(self.kept)

    def where(self, chosen: Tensor) -> Rows:
        """The rows of a mask or an index."""
        return Rows(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def scalar(self, name: str) -> Tensor:
        """One column of `scalars` by name [N]."""
        return self.scalars[:, SCALARS.index(name)]


def read_rows(folders: Sequence[Path], features: Sequence[str]) -> tuple[Rows, dict[str, int]]:
    """All rows of some label folders, and the width of every feature.

    Raises:
        UserError: a folder without rows, a column missing or not finite (file and row are named).
    """
    shards = [file for folder in folders for file in label_files(folder)]
    tables = [checked(load_tensors(file), features, file) for file in shards]
    widths = {name: tables[0][name].shape[-1] for name in features}
    for table, file in zip(tables, shards, strict=True):
        found = {name: table[name].shape[-1] for name in features}
        if found != widths:
            raise UserError(f"{file} holds features of widths {found}, {shards[0]} of {widths}. Label again.")
    # One feature after the other, so that only one is in memory twice.
    x = torch.cat([torch.cat([table[name] for table in tables]).float() for name in features], dim=-1)
    columns = {name: torch.cat([table[name] for table in tables]).to(dtype) for name, dtype in COLUMNS.items()}
    rows = Rows(x, torch.cat([table["scalars"] for table in tables]).float(), **columns)
    if not len(rows):
        raise UserError(
            f"{', '.join(map(str, folders))}: no mismatch at all, nothing to learn from. Collect more prompts."
        )
    return rows, widths


def label_files(folder: Path) -> list[Path]:
    """The shards of a label folder, in order."""
    files = sorted(folder.glob("rows-*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no labels. Run the stage `label` first (`dvc repro`).")
    return files


def checked(table: dict[str, Tensor], features: Sequence[str], file: Path) -> dict[str, Tensor]:
    """The table, once every column is there, equally long and finite."""
    wanted = [*dict.fromkeys([*features, "scalars"]), *COLUMNS]
    missing = [name for name in wanted if name not in table]
    if missing:
        raise UserError(f"{file} lacks {', '.join(missing)}. Collect and label again with these params.yaml features.")
    num = len(table["kept"])
    for name in wanted:
        if len(table[name]) != num:
            raise UserError(f"{file}: '{name}' has {len(table[name])} rows, 'kept' has {num}. Label again.")
        if name == "kl":
            continue
        bad = (~table[name].reshape(num, -1).isfinite().all(-1)).nonzero()
        if len(bad):
            raise UserError(
                f"{file}: '{name}' is not finite in {len(bad)} rows, the first is row {int(bad[0])}. "
                "Collect again, in bfloat16 or float32 if it was float16."
            )
    if not ((table["kept"] >= 0) & (table["kept"] <= 1)).all():
        raise UserError(f"{file}: 'kept' is no probability in every row. Label again.")
    return table
