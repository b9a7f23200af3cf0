"""Tables as dictionaries of tensors: what every step on a label's way does with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Table = dict[str, Tensor]
"""Columns by name, all with leading axis N (rows)."""


def concatenated(tables: Sequence[Table]) -> Table:
    """The rows of all tables, one table below the other; the columns are those of the first table."""
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def picked(table: Table, index: Tensor) -> Table:
    """The rows that `index [N']` names, in its order, or the rows where a mask [N] is true."""
    return {name: column[index] for name, column in table.items()}


def num_rows(table: Table) -> int:
    """N; 0 for a table without columns."""
    return len(next(iter(table.values()))) if table else 0
