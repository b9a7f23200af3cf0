"""What the large table adds to the choices of the core: a head on span labels, and pair counts."""

from __future__ import annotations

from typing import Any

from pipeline.certification.looks import Study
from pipeline.studies.table.params import read_table_params

MODULES = tuple(f"pipeline.studies.table.{name}" for name in ("spans", "judge", "pair_counts"))
"""Stages that train what only methods of the table ask."""


def table_study(name: str = "", own: Any = None, modules: tuple[str, ...] = ()) -> Study:
    """A study that certifies methods of the large table; see `Study` for the arguments.

    Raises:
        UserError: the parameters of the table cannot be read.
    """
    table = read_table_params()
    return Study(name, [table.span, table.span_features, own], (*MODULES, *modules))
