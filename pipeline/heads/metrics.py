"""How good a head is on problems that it has not seen, beside references that need no training.

The headline numbers come from the gate's own texts: while a gate decodes, nearly every position that it judges lies
behind loose accepts, which strict texts never show. Labels may be soft: `kept` is the probability that the meaning is
kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, brier_score_loss, precision_recall_curve, roc_auc_score
from torch import Tensor, nn

from pipeline.heads.data import Array, ProblemParts, Rows, as_classes
from pipeline.heads.fit import fit_map
from pipeline.labels.schema import Policy

BINS = 15  # of equal mass, for calibration error and reliability


def rank_metrics(kept_N: Array, score_N: Array) -> dict[str, float | None]:
    """AUC, and average precision of the class "lost", of a score that grows with P(kept); None for one class alone."""
    index, label, weight = as_classes(kept_N)
    if len(np.unique(label)) < 2:
        return {"auc": None, "ap": None}
    score = score_N[index]
    return {
        "auc": float(roc_auc_score(label, score, sample_weight=weight)),
        "ap": float(average_precision_score(1 - label, -score, sample_weight=weight)),
    }


def probability_metrics(kept_N: Array, probability_N: Array) -> dict[str, float]:
    """Brier score and expected calibration error of P(kept)."""
    index, label, weight = as_classes(kept_N)
    brier = brier_score_loss(label, probability_N[index].clip(0, 1), sample_weight=weight, pos_label=1)
    bins = reliability(kept_N, probability_N)
    gaps = [abs(one["predicted"] - one["observed"]) * one["n"] for one in bins]
    return {"brier": float(brier), "ece": float(sum(gaps) / sum(one["n"] for one in bins))}


def measure(kept_N: Array, score_N: Array, probability_N: Array) -> dict[str, Any]:
    """Number of rows, mean label, AUC, AP, Brier and ECE; all but the number are None without rows."""
    if not len(kept_N):
        return {"n": 0, "kept": None, "auc": None, "ap": None, "brier": None, "ece": None}
    both = {**rank_metrics(kept_N, score_N), **probability_metrics(kept_N, probability_N)}
    return {"n": len(kept_N), "kept": float(kept_N.mean()), **both}


def reliability(kept_N: Array, probability_N: Array, bins: int = BINS) -> list[dict[str, float]]:
    """Mean prediction against mean label, in bins of equal mass; equal predictions share a bin.

    `sklearn.calibration.calibration_curve` refuses soft labels and does not say how many rows a bin has.
    """
    order = np.argsort(probability_N, kind="stable")
    ranked = probability_N[order]
    cuts = [np.searchsorted(ranked, ranked[len(ranked) * b // bins], side="left") for b in range(1, bins)]
    parts = np.split(order, sorted(set(cuts) - {0}))
    return [
        {"predicted": float(probability_N[part].mean()), "observed": float(kept_N[part].mean()), "n": len(part)}
        for part in parts
        if len(part)
    ]


def precision_recall(kept_N: Array, score_N: Array, points: int = 100) -> list[dict[str, float]]:
    """Precision and recall of the class "lost", at no more than about `points` places along the curve."""
    index, label, weight = as_classes(kept_N)
    if len(np.unique(label)) < 2:
        return []
    precision, recall, _ = precision_recall_curve(1 - label, -score_N[index], sample_weight=weight)
    chosen = np.unique(np.linspace(0, len(recall) - 1, min(points, len(recall))).round().astype(int))
    return [{"precision": float(precision[i]), "recall": float(recall[i])} for i in chosen]


def measure_head(
    rows: Rows, parts: ProblemParts, logits_N: Tensor, fitted: nn.Module, map_kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of metrics.json and curves.json: the headline policy, every policy apart, and the references.

    References are scores that need no training: the target's entropy (FLy, arXiv 2511.22972), the draft token's
    probability against the best one, and the agreement of both models (KL judge, arXiv 2601.04766), which is absent
    without a draft distribution. They get the same kind of map as the head, fitted on the same calibration part.
    """
    references = {"entropy": rows.scalar("entropy"), "logprob-ratio": -rows.scalar("gap")}
    if rows.kl.isfinite().all():
        references["kl"] = -rows.kl
    gated = (rows.policy == Policy.GATED) & parts.test
    policy = "gated" if bool(gated.any()) else "all"
    metrics, curves = measure_score(rows, parts.test, logits_N, fitted, policy)
    metrics["problems"] = {name: int(rows.problem[mask].unique().numel()) for name, mask in vars(parts).items()}
    metrics["references"], curves["references"] = {}, {}
    for name, score_N in references.items():
        its_map = fit_map(map_kind, score_N[parts.calibration], rows.kept[parts.calibration])
        found, curve = measure_score(rows, parts.test, score_N, its_map, policy)
        metrics["references"][name], curves["references"][name] = found, curve
    return metrics, curves


def measure_score(
    rows: Rows, test_N: Tensor, score_N: Tensor, fitted: nn.Module, headline: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and curves of one score on the test part."""
    chosen = {"all": test_N} | {policy.name.lower(): test_N & (rows.policy == policy) for policy in Policy}
    probability_N = fitted(score_N.float())
    arrays = {
        name: tuple(tensor[mask].double().numpy() for tensor in (rows.kept, score_N, probability_N))
        for name, mask in chosen.items()
        if bool(mask.any())
    }
    by_policy = {name: measure(*columns) for name, columns in arrays.items()}
    kept, score, probability = arrays[headline]
    curves = {"reliability": reliability(kept, probability), "precision_recall": precision_recall(kept, score)}
    return {"policy": headline, **by_policy[headline], "policies": by_policy}, {"policy": headline, **curves}
