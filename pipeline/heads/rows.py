"""Labels with their features as one matrix, read from data/features and checked where they enter.

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
from pipeline.labels.schema import ROWS, checked, feature_columns
from pipeline.labels.tables import Table, concatenated


@dataclass(frozen=True)
class Rows:
    """Mismatches with features and labels; every tensor has leading axis N."""

    x: Tensor
    """Features side by side [N, F], float32."""
    scalars: Tensor
    """The feature `scalars` [N, len(SCALARS)], float32; the training-free references judge by it."""
    problem: Tensor
    """Which training prompt the mismatch comes from [N]."""
    policy: Tensor
    """Whose text the mismatch lies on, a Policy [N]."""
    kept: Tensor
    """Probability that the meaning is kept [N], the label."""
    kl: Tensor
    """KL(p || q) in nats [N], nan without a draft distribution."""

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
    """All rows of some folders of data/features, and the width of every feature.

    Raises:
        UserError: a folder without rows, or a shard that breaks the schema (file, column and row are named).
    """
    wanted = tuple(dict.fromkeys((*features, "scalars")))
    columns = {**ROWS, **feature_columns(wanted)}
    tables: list[Table] = []
    widths: dict[str, int] = {}
    for file in [file for folder in folders for file in files_of(folder)]:
        table = load_tensors(file)
        if not len(table["kept"]):
            continue
        checked(table, columns, file)
        found = {name: table[name].shape[-1] for name in wanted}
        if widths and found != widths:
            raise UserError(
                f"{file} holds features of widths {found}, the shards before it of {widths}. Read them anew."
            )
        widths = found
        tables.append({name: table[name] for name in columns})
    if not tables:
        raise UserError(f"{', '.join(map(str, folders))}: no label at all. Raise prompts.train in params.yaml.")
    table = concatenated(tables)
    del tables  # no more than two copies are in memory at any time
    return rows_of(table, features), {name: widths[name] for name in features}


def files_of(folder: Path) -> list[Path]:
    """The shards of a folder, in order."""
    files = sorted(folder.glob("rows-*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no features. Run the stage that writes it (`dvc repro`).")
    return files
