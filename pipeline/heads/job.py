"""One head from its settings to its gate: fit, calibrate, measure on problems that it has not seen,
beside references that need no training. The headline numbers come from the gate's own texts: what
it judges while it decodes lies behind loose accepts, which strict texts never show. Labels may be
soft: `kept` is the probability that the meaning is kept."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from torch import Tensor, nn

from gistgate.core.files import fingerprint, read_json
from gistgate.core.heads import HEADS, Isotonic, Platt
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.gate import Gate, GateConfig
from pipeline.heads.fit import effects, fit_effects, fit_logistic, fit_map, fit_net, head_sizes
from pipeline.labels.schema import Array, Policy, ProblemParts, Rows, as_classes, split_by_problem
from pipeline.pair.pair import Pair
from pipeline.params import Params, TrainParams, kind_of, recorded
from pipeline.paths import LEARNED

COMMON = ("features", "test_share", "calibration_share", "validation_share", "map")
"""Settings of params.train that every head depends on."""
NET = ("epochs", "patience", "batch_size", "lr", "weight_decay", "hidden", "dropout")
OWN = {
    "logistic": ("c", "folds"),
    "effects": ("folds",),
    **dict.fromkeys(HEADS, NET),
    "linear": NET[:5],
}
"""The heads that can be trained, and the other settings that each depends on."""
BINS = 15  # of equal mass, for calibration error and reliability


def partners_of(pair: Pair) -> dict[str, Any]:
    """The identities of a loaded pair, as the gate's config.json has them, with the names of the
    pair's file.
    """
    models = {"target": pair.target, "draft": pair.draft}
    named = {
        role: model and identify_model(model, pair.names.get(role))
        for role, model in models.items()
    }
    return {**named, "tokenizer": identify_tokenizer(pair.tokenizer, pair.names.get("tokenizer"))}


def fit_head(
    head: str, config: GateConfig, rows: Rows, params: TrainParams, seed: int
) -> tuple[Gate, dict[str, Any], dict[str, Any]]:
    """Fit, calibrate and measure a head, each on problems of their own: its gate, and metrics.json
    and curves.json.
    """
    kind = kind_of(head)
    parts = split_by_problem(rows.problem, params, seed)
    if kind == "effects":
        return fit_by_effects(config, rows, parts, params.folds)
    if (
        bool(rows.outcome.any()) and not rows.outcome.all()
    ):  # of both kinds outcomes are for the map and the measures
        fit = ~rows.outcome
        judge = rows.outcome
        parts = ProblemParts(
            parts.train & fit, parts.validation & fit, parts.calibration & judge, parts.test & judge
        )
    net: nn.Module
    if kind == "logistic":
        net, losses = fit_logistic(
            rows.where(parts.train | parts.validation), params.c, params.folds
        )
        report: dict[str, Any] = {"loss_by_c": losses}
    else:
        net, report = fit_net(
            kind, rows.where(parts.train), rows.where(parts.validation), params, seed
        )
    with torch.no_grad():  # computed as the gate will: in float32
        logits_N = torch.cat([net(part) for part in rows.x.split(65536)])
    fitted = fit_map(params.map, logits_N[parts.calibration], rows.kept[parts.calibration])
    metrics, curves = measure_head(rows, parts, logits_N, fitted, params.map)
    knots = fitted.knots.numel() if isinstance(fitted, Isotonic) else 0
    gate = Gate(replace(config, map={**config.map, "num_knots": knots}))
    gate.head.load_state_dict(net.state_dict())
    gate.map.load_state_dict(fitted.state_dict())
    return gate, {**metrics, "training": report}, curves


def fit_by_effects(
    config: GateConfig, rows: Rows, parts: ProblemParts, folds: int
) -> tuple[Gate, dict[str, Any], dict[str, Any]]:
    """The head of `label.recipe: answers`: its logits need no map, and it is measured by what the
    tokens that it keeps, and those that it refuses, do to the answers of problems that it has not
    seen."""
    widths = [*config.features.values()]
    net, report = fit_effects(rows.where(~parts.test), widths, config.labels["price"], folds)
    gate = Gate(replace(config, map={"type": "platt", "num_knots": 0}))
    gate.head.load_state_dict(net.state_dict())
    gate.map.load_state_dict(Platt(1.0, 0.0).state_dict())
    test = rows.where(parts.test)
    with torch.no_grad():
        kept = net(test.x) >= 0
    found = {
        name: effects(test.where(mask))
        for name, mask in (("kept", kept), ("refused", ~kept))
        if mask.any()
    }
    flat = {f"{name}_{what}": value for name, some in found.items() for what, value in some.items()}
    metrics = {
        "policy": "all",
        "n": len(kept),
        "share_kept": float(kept.float().mean()),
        **flat,
        "training": report,
    }
    return gate, metrics, {"policy": "all", "reliability": []}


def settings_of(head: str, params: TrainParams) -> dict[str, Any]:
    """The settings of params.train that this head depends on."""
    values = asdict(params)
    values["features"] = params.features_of(head)
    return {name: values[name] for name in (*COMMON, *OWN[kind_of(head)])}


def head_config(
    head: str,
    params: Params,
    widths: Mapping[str, int],
    partners: Mapping[str, Any],
    folders: Sequence[Path],
) -> GateConfig:
    """What the gate of a head says about its training on these folders of features."""
    kind = "linear" if kind_of(head) in ("logistic", "effects") else kind_of(head)
    # the metric where the run names one, and the longest answer where the task names none
    judged_by = {
        "task": params.task,
        "max_new_tokens": params.decoding.max_new_tokens,
        **({"metric": params.task_metric} if params.task_metric else {}),
        **({"code": True} if params.allow_code else {}),
    }
    packages = ("torch", "transformers", "scikit-learn", "pytorch-lightning")
    return GateConfig(
        head={"type": kind, **head_sizes(kind, params.train)},
        features=dict(widths),
        **partners,
        map={"type": params.train.map, "num_knots": 0},
        labels={**judged_by, **recorded(params.label)},
        prompting=recorded(params.prompting),
        provenance={
            "data": {str(folder): fingerprint(folder) for folder in folders},
            "parameters": settings_of(head, params.train),
            "seed": params.seed,
            "trainer": head,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in packages},
            },
        },
        problems=read_json(LEARNED)["train"],
    )


def measure(kept_N: Array, score_N: Array, probability_N: Array) -> dict[str, Any]:
    """Number of rows, mean label, AUC and average precision of the class "lost" (None for one class
    alone) of a score that grows with P(kept), Brier score and expected calibration error of the
    probability."""
    index, label, weight = as_classes(kept_N)
    score = score_N[index]
    probability = probability_N[index].clip(0, 1)
    ranks: dict[str, float | None] = {"auc": None, "ap": None}
    if len(np.unique(label)) == 2:
        ranks["auc"] = float(roc_auc_score(label, score, sample_weight=weight))
        ranks["ap"] = float(average_precision_score(1 - label, -score, sample_weight=weight))
    brier = float(brier_score_loss(label, probability, sample_weight=weight, pos_label=1))
    gaps = [
        abs(one["predicted"] - one["observed"]) * one["n"]
        for one in reliability(kept_N, probability_N)
    ]
    return {
        "n": len(kept_N),
        "kept": float(kept_N.mean()),
        **ranks,
        "brier": brier,
        "ece": sum(gaps) / len(kept_N),
    }


def reliability(kept_N: Array, probability_N: Array) -> list[dict[str, float]]:
    """Mean prediction against mean label, in bins of equal mass; `calibration_curve` refuses soft
    labels.
    """
    order = np.argsort(probability_N, kind="stable")
    ranked = probability_N[order]
    cuts = [
        np.searchsorted(ranked, ranked[len(ranked) * b // BINS], side="left")
        for b in range(1, BINS)
    ]
    parts = np.split(order, sorted(set(cuts) - {0}))
    return [
        {
            "predicted": float(probability_N[part].mean()),
            "observed": float(kept_N[part].mean()),
            "n": len(part),
        }
        for part in parts
        if len(part)
    ]


def measure_head(
    rows: Rows, parts: ProblemParts, logits_N: Tensor, fitted: nn.Module, map_kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of metrics.json and curves.json: the headline policy, every policy apart, and
    references that need no training: the target's entropy (FLy, arXiv 2511.22972), the draft
    token's probability against the best one, and the agreement of both models (KL judge, arXiv
    2601.04766), each with a map fitted as the head's."""
    references = {"entropy": rows.scalar("entropy"), "logprob-ratio": -rows.scalar("gap")}
    if rows.kl.isfinite().all():
        references["kl"] = -rows.kl
    gated = (rows.policy == Policy.GATED) & parts.test
    policy = "gated" if bool(gated.any()) else "all"
    metrics, reliable = measure_score(rows, parts.test, logits_N, fitted, policy)
    metrics["problems"] = {
        name: int(rows.problem[mask].unique().numel()) for name, mask in vars(parts).items()
    }
    metrics["references"] = {}
    for name, score_N in references.items():
        its_map = fit_map(map_kind, score_N[parts.calibration], rows.kept[parts.calibration])
        metrics["references"][name], _ = measure_score(rows, parts.test, score_N, its_map, policy)
    return metrics, {"policy": policy, "reliability": reliable}


def measure_score(
    rows: Rows, test_N: Tensor, score_N: Tensor, fitted: nn.Module, headline: str
) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Metrics of one score on the test part, and its reliability."""
    chosen = {"all": test_N} | {
        policy.name.lower(): test_N & (rows.policy == policy) for policy in Policy
    }
    probability_N = fitted(score_N.float())
    arrays = {
        name: tuple(tensor[mask].double().numpy() for tensor in (rows.kept, score_N, probability_N))
        for name, mask in chosen.items()
        if bool(mask.any())
    }
    by_policy = {name: measure(*columns) for name, columns in arrays.items()}
    kept, _, probability = arrays[headline]
    return {"policy": headline, **by_policy[headline], "policies": by_policy}, reliability(
        kept, probability
    )
