"""How good a head is on problems it has not seen, beside references that need no training.

The headline is on the prefixes of the gate's own texts: while a gate decodes, nearly every position it judges lies
behind loose accepts, which strict texts never show.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pipeline.heads.maps import fit_map
from pipeline.heads.metrics import measure, precision_recall, reliability
from pipeline.heads.rows import POLICIES, Rows
from pipeline.heads.split import Parts


def references(rows: Rows) -> dict[str, Tensor]:
    """Training-free scores that grow with "kept" [N]: an undecided target (FLy, arXiv 2511.22972), a draft token nearly
    as probable as the best, two models that agree (KL judge, arXiv 2601.04766; absent without a draft distribution)."""
    scores = {"entropy": rows.scalar("entropy"), "logprob-ratio": -rows.scalar("gap")}
    if rows.kl.isfinite().all():
        scores["kl"] = -rows.kl
    return scores


def measure_head(
    rows: Rows, parts: Parts, logits_N: Tensor, fitted: nn.Module, map_kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """metrics.json and curves.json: the headline policy, every policy apart, and the references.

    References get the same kind of map, fitted on the same calibration part.
    """
    policy = headline_policy(rows, parts)
    metrics, curves = measure_score(rows, parts.test, logits_N, fitted, policy)
    metrics["problems"] = {name: int(rows.problem[mask].unique().numel()) for name, mask in vars(parts).items()}
    metrics["references"], curves["references"] = {}, {}
    for name, score_N in references(rows).items():
        its_map = fit_map(map_kind, score_N[parts.calibration], rows.kept[parts.calibration])
        found, curve = measure_score(rows, parts.test, score_N, its_map, policy)
        metrics["references"][name], curves["references"][name] = found, curve
    return metrics, curves


def headline_policy(rows: Rows, parts: Parts) -> str:
    """Gated prefixes where there are any, else all."""
    gated = rows.prefix == POLICIES.index("gated")
    return "gated" if bool((gated & parts.test).any()) else "all"


def measure_score(
    rows: Rows, test_N: Tensor, score_N: Tensor, fitted: nn.Module, headline: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and curves of one score on the test part."""
    chosen = {"all": test_N} | {name: test_N & (rows.prefix == i) for i, name in enumerate(POLICIES)}
    probability_N = fitted(score_N.float())
    arrays = {
        name: tuple(tensor[mask].double().numpy() for tensor in (rows.kept, score_N, probability_N))
        for name, mask in chosen.items()
        if bool(mask.any())
    }
    by_policy = {name: measure(*columns) for name, columns in arrays.items()}
    kept, score, probability = arrays[headline]
    curves = {
        "policy": headline,
        "reliability": reliability(kept, probability),
        "precision_recall": precision_recall(kept, score),
    }
    return {"policy": headline, **by_policy[headline], "policies": by_policy}, curves
