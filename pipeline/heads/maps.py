"""Fitting the map from logits to probabilities, on problems that the head has not seen."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from gistgate.gates.calibration import MAPS, Isotonic, Platt
from pipeline.heads.soft import as_classes


def fit_map(kind: str, logits_N: Tensor, kept_N: Tensor) -> nn.Module:
    """The probability map `kind` ("platt" or "isotonic") for these logits and labels."""
    _ = MAPS[kind]
    fit = {"platt": fit_platt, "isotonic": fit_isotonic}[kind]
    return fit(logits_N.double().numpy(), kept_N.double().numpy())


def fit_platt(logits: np.ndarray, kept: np.ndarray) -> Platt:
    """Platt's regression with his smoothed targets, so that few examples never give a probability of 0 or 1."""
    num_kept, num_lost = kept.sum(), (1 - kept).sum()
    high, low = (num_kept + 1) / (num_kept + 2), 1 / (num_lost + 2)
    target = kept * high + (1 - kept) * low
    index, label, weight = as_classes(target)
    spread = logits.std() or 1.0
    model = LogisticRegression(C=np.inf, max_iter=1000).fit(logits[index, None] / spread, label, sample_weight=weight)
    slope = float(model.coef_[0, 0] / spread)
    if slope <= 0:  # the head ranks the wrong way round: give the base rate instead of inverting its scores
        rate = target.mean()
        return Platt(0.0, float(np.log(rate / (1 - rate))))
    return Platt(slope, float(model.intercept_[0]))


def fit_isotonic(logits: np.ndarray, kept: np.ndarray) -> Isotonic:
    """Isotonic regression whose ends stay away from 0 and 1, so that no logit is ever certain."""
    margin = 1 / (len(kept) + 2)
    model = IsotonicRegression(y_min=margin, y_max=1 - margin).fit(logits, kept)
    return Isotonic(model.X_thresholds_.tolist(), model.y_thresholds_.tolist())


def num_knots(fitted: nn.Module) -> int:
    """Size of an isotonic map; 0 for maps without knots."""
    return fitted.knots.numel() if isinstance(fitted, Isotonic) else 0
