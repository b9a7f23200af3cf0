"""Soft labels for estimators that know only classes.

A row that is kept with probability 0.7 becomes two rows, one of each class, with weights 0.7 and 0.3. Every weighted
loss then equals the loss against the soft label.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def as_classes(kept_N: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Row index, class (1: kept) and weight, each [M] with N <= M <= 2 N; rows without weight are left out."""
    rows = np.arange(len(kept_N))
    index, label = np.concatenate([rows, rows]), np.repeat([1, 0], len(kept_N))
    weight = np.concatenate([kept_N, 1 - kept_N])
    some = weight > 0
    return index[some], label[some], weight[some]
