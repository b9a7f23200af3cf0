"""What the parts of a round cost on one machine; a measurement, and then numbers like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Costs:
    """What forwards of a pair cost, one row at a time."""

    step: float
    """One plain target step, in seconds."""
    draft: float
    """c: one draft step, in target steps."""
    verify: Mapping[int, float]
    """v(K): verifying K drafted tokens and the one before them, in target steps, by K."""

    def verification(self, block: float) -> float:
        """v at any K: linear between the measured ones, and the nearest of them outside."""
        known = sorted(self.verify)
        return float(np.interp(block, known, [self.verify[k] for k in known]))
