"""The logistic head: scikit-learn's regression on standardised features, folded into one linear layer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from gistgate.errors import UserError
from gistgate.gates.heads import Linear, fold_standardisation
from pipeline.heads.rows import Rows
from pipeline.heads.soft import Array, as_classes


def fit_logistic(rows: Rows, strengths: Sequence[float], folds: int) -> tuple[Linear, dict[str, float]]:
    """A linear head, and for each C the log loss per row on folds of unseen problems.

    Raises:
        UserError: all labels are alike.
    """
    kept = rows.kept.double().numpy()
    if not 0 < kept.mean() < 1:
        raise UserError(
            f"All {len(kept)} training labels are alike (kept: {kept.mean():g}), so nothing can be learnt. "
            "Raise prompts.train in params.yaml."
        )
    raw = rows.x.double().numpy()
    scaler = StandardScaler().fit(raw)
    x = scaler.transform(raw)
    losses = cross_validate(x, kept, rows.problem.numpy(), sorted(strengths), folds)
    model = fit_at(min(losses, key=lambda c: losses[c]), x, kept)
    return folded(scaler, model), {f"{c:g}": loss for c, loss in losses.items()}


def cross_validate(
    x: Array, kept: Array, problem: np.ndarray, strengths: Sequence[float], folds: int
) -> dict[float, float]:
    """Mean log loss on folds of unseen problems for every C; folds whose training labels are all alike are left out."""
    losses = dict.fromkeys(strengths, 0.0)
    if len(strengths) == 1:
        return losses
    for train, unseen in GroupKFold(min(folds, len(np.unique(problem)))).split(x, groups=problem):
        if not 0 < kept[train].mean() < 1:
            continue
        index, label, weight = as_classes(kept[unseen])
        model = None
        for c in strengths:
            model = fit_at(c, x[train], kept[train], model)
            probability = model.predict_proba(x[unseen][index])
            losses[c] += float(log_loss(label, probability, sample_weight=weight, normalize=False, labels=[0, 1]))
    return {c: loss / len(kept) for c, loss in losses.items()}


def fit_at(c: float, x: Array, kept: Array, start: LogisticRegression | None = None) -> LogisticRegression:
    """A regression of strength C against soft labels; it begins with the weights of `start`."""
    index, label, weight = as_classes(kept)
    model = LogisticRegression(C=c, max_iter=2000, warm_start=True)
    if start is not None:
        model.coef_, model.intercept_, model.classes_ = start.coef_.copy(), start.intercept_.copy(), start.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the loss on unseen problems decides, not the last digit
        return model.fit(x[index], label, sample_weight=weight)


def folded(scaler: StandardScaler, model: LogisticRegression) -> Linear:
    """Scaler and regression as one linear layer on raw features."""
    head = Linear(len(scaler.mean_)).double()
    with torch.no_grad():
        head.first.weight.copy_(torch.from_numpy(model.coef_))
        head.first.bias.copy_(torch.from_numpy(model.intercept_))
    fold_standardisation(head.first, torch.from_numpy(scaler.mean_), torch.from_numpy(scaler.scale_))
    return head.float().eval()
