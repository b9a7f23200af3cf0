"""How far a ratio is known where whole rounds or processes are compared, of which there are often few.

The ends of a 90 % bootstrap over three or four rounds hold far less often than they say, so that below `FEWEST` the
lowest and the highest round stand in their place; `kind` says which of the two they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.observing.intervals import Columns, over_prompts

FEWEST = 8
"""Rounds from which on a bootstrap is drawn."""
RANGE, BOOTSTRAP = "range", "bootstrap"
SAID = {RANGE: "lowest to highest round", BOOTSTRAP: "90 % bootstrap interval over rounds"}
"""What the ends are, for captions."""


def over_rounds(figure: Callable[[Columns], Tensor], columns: dict[str, Sequence[float]]) -> dict[str, Any]:
    """A figure [R] of these columns [N] with `low`, `high` and their `kind`, as plain JSON."""
    rounds = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    if min(map(len, rounds.values())) >= FEWEST:
        return {**over_prompts(lambda seen: {"": figure(seen)}, columns)[""].as_dict(), "kind": BOOTSTRAP}
    whole = float(figure({name: column[None] for name, column in rounds.items()}))
    each = figure({name: column[:, None] for name, column in rounds.items()})
    return {"mean": whole, "low": float(each.min()), "high": float(each.max()), "kind": RANGE}


def ratio_over_rounds(reference: Sequence[float], own: Sequence[float]) -> dict[str, Any]:
    """sum(reference) / sum(own) over the same rounds, with its ends."""
    return over_rounds(
        lambda seen: seen["reference"].sum(-1) / seen["own"].sum(-1), {"reference": reference, "own": own}
    )
