"""Ratios with intervals where only torch is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from gistgate.errors import UserError

RESAMPLES = 9999
"""Bootstrap resamples, as many as the pipeline's reports draw."""


@dataclass(frozen=True)
class Ratio:
    """How many times faster, with its two-sided bootstrap interval."""

    mean: float
    """The ratio of the sums that were seen."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    def as_dict(self) -> dict[str, float]:
        """Plain JSON."""
        return asdict(self)


def ratio_of_sums(reference: Sequence[float], own: Sequence[float], level: float = 0.9, seed: int = 0) -> Ratio:
    """sum(reference) / sum(own) over the same batches [N], with a paired percentile bootstrap interval.

    `pipeline.paired` does the same with scipy, which a machine with a GPU need not have.

    Raises:
        UserError: the seconds are not paired, or not positive.
    """
    if len(reference) != len(own) or not own or min(*reference, *own) <= 0:
        raise UserError("A speed ratio needs positive seconds for every batch on both sides. Measure again.")
    a_N, b_N = torch.tensor(reference, dtype=torch.float64), torch.tensor(own, dtype=torch.float64)
    drawn = torch.randint(len(own), (RESAMPLES, len(own)), generator=torch.Generator().manual_seed(seed))
    ratios = a_N[drawn].sum(1) / b_N[drawn].sum(1)
    low, high = ratios.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    return Ratio(float(a_N.sum() / b_N.sum()), low, high)
