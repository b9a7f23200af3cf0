"""How good a head is on problems that it has not seen, beside references that need no training.

The headline numbers come from the gate's own texts: while a gate decodes, nearly every position that it judges lies
behind loose accepts, which strict texts never show.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pipeline.heads.maps import fit_map
from pipeline.heads.metrics import measure, precision_recall, reliability
from pipeline.heads.rows import Rows
from pipeline.heads.split import ProblemParts
from pipeline.labels.schema import Policy


def references(rows: Rows) -> dict[str, Tensor]:
    """Training-free scores that grow with P(kept) [N].

    They are the target's entropy (FLy, arXiv 2511.22972), the draft token's probability against the best one, and the
    agreement of both models (KL judge, arXiv 2601.04766), which is absent without a draft distribution.
    """
    scores = {"entropy": rows.scalar("entropy"), "logprob-ratio": -rows.scalar("gap")}
    if rows.kl.isfinite().all():
        scores["kl"] = -rows.kl
    return scores


def measure_head(
    rows: Rows, parts: ProblemParts, logits_N: Tensor, fitted: nn.Module, map_kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of metrics.json and curves.json: the headline policy, every policy apart, and the references.

    References get the same kind of map as the head, fitted on the same calibration part.
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


def headline_policy(rows: Rows, parts: ProblemParts) -> str:
    """Return "gated" where the test part has rows on gated texts, else "all"."""
    gated = rows.policy == Policy.GATED
    return "gated" if bool((gated & parts.test).any()) else "all"


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
    curves = {
        "policy": headline,
        "reliability": reliability(kept, probability),
        "precision_recall": precision_recall(kept, score),
    }
    return {"policy": headline, **by_policy[headline], "policies": by_policy}, curves
