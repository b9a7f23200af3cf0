"""Ratios with intervals where only torch is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from gistgate.errors import UserError

RESAMPLES = 9999
"""Bootstrap resamples, as many as the pipeline's reports draw."""
Columns = Mapping[str, Tensor]
"""What was measured on each prompt, by name: [R, N], one row for each resample."""


@dataclass(frozen=True)
class Ratio:
    """A figure, such as how many times faster, with its two-sided bootstrap interval."""

    mean: float
    """The figure of what was seen."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def as_dict(self) -> dict[str, float]:
        """Plain JSON."""
        return asdict(self)


def ratio_of_sums(reference: Sequence[float], own: Sequence[float], level: float = 0.9, seed: int = 0) -> Ratio:
    """sum(reference) / sum(own) over the same batches [N], with a paired percentile bootstrap interval.

    `pipeline.report.paired_statistics` does the same with scipy, which a machine with a GPU need not have.

    Raises:
        UserError: the seconds are not paired, or not positive.
    """
    if len(reference) != len(own) or not own or min(*reference, *own) <= 0:
        raise UserError("A speed ratio needs positive seconds for every batch on both sides. Measure again.")
    columns = {"reference": reference, "own": own}
    return over_prompts(lambda seen: {"": seen["reference"].sum(-1) / seen["own"].sum(-1)}, columns, level, seed)[""]


def over_prompts(
    figures: Callable[[Columns], Columns], columns: Mapping[str, Sequence[float]], level: float = 0.9, seed: int = 0
) -> dict[str, Ratio]:
    """Every figure [R] of these columns [N], with its percentile bootstrap interval over prompts."""
    seen = {name: torch.tensor(column, dtype=torch.float64)[None] for name, column in columns.items()}
    num = next(iter(seen.values())).shape[1]
    drawn = torch.randint(num, (RESAMPLES, num), generator=torch.Generator().manual_seed(seed))
    resampled = figures({name: column[0, drawn] for name, column in seen.items()})
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return {
        name: Ratio(float(value), *resampled[name].quantile(ends).tolist()) for name, value in figures(seen).items()
    }
