"""One head from its settings to its gate: fit, calibrate, measure on problems that it has not seen,
beside references that need no training. The headline numbers come from the gate's own texts: what
it judges while it decodes lies behind loose accepts, which strict texts never show. Labels may be
soft: `kept` is the probability that the meaning is kept.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from torch import Tensor, nn

from gistgate.core.files import fingerprint, read_json
from gistgate.core.heads import HEADS, Platt
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.gate import Gate, GateConfig
from pipeline.heads.fit import effects, fit_effects, fit_logistic, fit_net, fit_platt, head_sizes
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
PACKAGES = ("torch", "transformers", "scikit-learn", "pytorch-lightning")
BINS = 15  # of equal mass, for calibration error and reliability
Metrics = dict[str, Any]
Trained = tuple[Gate, Metrics, Metrics]
"""A gate with the contents of metrics.json and curves.json."""


def partners_of(pair: Pair) -> dict[str, Any]:
    """The identities of a loaded pair, as the gate's config.json has them, with the names of the
    pair's file.
    """
    names = pair.names
    return {
        "target": identify_model(pair.target, names.get("target")),
        "draft": pair.draft and identify_model(pair.draft, names.get("draft")),
        "tokenizer": identify_tokenizer(pair.tokenizer, names.get("tokenizer")),
    }


def fit_head(
    head: str,
    config: GateConfig,
    rows: Rows,
    params: TrainParams,
    seed: int,
) -> Trained:
    """Fit, calibrate and measure a head, each on problems of their own."""
    kind = kind_of(head)
    parts = split_by_problem(rows.problem, params, seed)
    if kind == "effects":
        return fit_by_effects(config, rows, parts.test, params.folds)
    net: nn.Module
    report: Metrics
    if kind == "logistic":
        train = rows.where(parts.train | parts.validation)
        net, losses = fit_logistic(train, params.c, params.folds)
        report = {"loss_by_c": losses}
    else:
        train = rows.where(parts.train)
        net, report = fit_net(kind, train, rows.where(parts.validation), params, seed)
    with torch.no_grad():  # computed as the gate will: in float32
        logits_N = torch.cat([net(part) for part in rows.x.split(65536)])
    unseen = parts.calibration
    fitted = fit_platt(logits_N[unseen], rows.kept[unseen])
    metrics, curves = measure_head(rows, parts, logits_N, fitted)
    return gate_with(config, net, fitted), {**metrics, "training": report}, curves


def gate_with(config: GateConfig, head: nn.Module, fitted: Platt) -> Gate:
    """The gate of a trained head and its probability map."""
    gate = Gate(config)
    gate.head.load_state_dict(head.state_dict())
    gate.map.load_state_dict(fitted.state_dict())
    return gate


def fit_by_effects(config: GateConfig, rows: Rows, test_N: Tensor, folds: int) -> Trained:
    """The head of `label.recipe: answers`: its logits need no map, and it is measured by what the
    tokens that it keeps, and those that it refuses, do to the answers of problems that it has not
    seen.
    """
    widths = [*config.features.values()]
    net, report = fit_effects(rows.where(~test_N), widths, config.labels["price"], folds)
    gate = gate_with(config, net, Platt())
    test = rows.where(test_N)
    with torch.no_grad():
        kept = net(test.x) >= 0
    metrics = {"policy": "all", "n": len(kept), "share_kept": float(kept.float().mean())}
    for name, mask in (("kept", kept), ("refused", ~kept)):
        if mask.any():
            means = effects(test.where(mask))
            metrics |= {f"{name}_{effect}": value for effect, value in means.items()}
    return gate, {**metrics, "training": report}, {"policy": "all", "reliability": []}


def settings_of(head: str, params: TrainParams) -> dict[str, Any]:
    """The settings of params.train that this head depends on."""
    values = {**recorded(params), "features": params.features_of(head)}
    return {name: values[name] for name in (*COMMON, *OWN[kind_of(head)])}


def head_config(
    head: str,
    params: Params,
    widths: Mapping[str, int],
    partners: Mapping[str, Any],
    folders: Sequence[Path],
) -> GateConfig:
    """What the gate of a head says about its training on these folders of features."""
    kind = kind_of(head)
    if kind in ("logistic", "effects"):
        kind = "linear"
    labels = {"task": params.task, "max_new_tokens": params.decoding.max_new_tokens}
    if params.task_metric:
        labels["metric"] = params.task_metric
    if params.allow_code:
        labels["code"] = True
    versions = {name: version(name) for name in PACKAGES}
    return GateConfig(
        head={"type": kind, **head_sizes(kind, params.train)},
        features=dict(widths),
        **partners,
        map={"type": "platt", "num_knots": 0},
        labels=labels | recorded(params.label),
        prompting=recorded(params.prompting),
        provenance={
            "data": {str(folder): fingerprint(folder) for folder in folders},
            "parameters": settings_of(head, params.train),
            "seed": params.seed,
            "trainer": head,
            "versions": {"python": platform.python_version(), **versions},
        },
        problems=read_json(LEARNED)["train"],
    )


def measure(kept_N: Array, score_N: Array, probability_N: Array) -> Metrics:
    """Number of rows, mean label, AUC and average precision of the class "lost" (None for one class
    alone) of a score that grows with P(kept), Brier score and expected calibration error of the
    probability.
    """
    index, label, weight = as_classes(kept_N)
    score = score_N[index]
    probability = probability_N[index].clip(0, 1)
    auc = None
    ap = None
    if len(np.unique(label)) == 2:
        auc = float(roc_auc_score(label, score, sample_weight=weight))
        ap = float(average_precision_score(1 - label, -score, sample_weight=weight))
    brier = brier_score_loss(label, probability, sample_weight=weight, pos_label=1)
    error = sum(
        abs(part["predicted"] - part["observed"]) * part["n"]
        for part in reliability(kept_N, probability_N)
    )
    return {
        "n": len(kept_N),
        "kept": float(kept_N.mean()),
        "auc": auc,
        "ap": ap,
        "brier": float(brier),
        "ece": error / len(kept_N),
    }


def reliability(kept_N: Array, probability_N: Array) -> list[Metrics]:
    """Mean prediction against mean label, in bins of equal mass; `calibration_curve` refuses soft
    labels.
    """
    order = np.argsort(probability_N, kind="stable")
    ranked = probability_N[order]
    ends = ranked[[len(ranked) * place // BINS for place in range(1, BINS)]]
    cuts = set(np.searchsorted(ranked, ends).tolist()) - {0}
    return [
        {
            "predicted": float(probability_N[part].mean()),
            "observed": float(kept_N[part].mean()),
            "n": len(part),
        }
        for part in np.split(order, sorted(cuts))
    ]


def measure_head(
    rows: Rows, parts: ProblemParts, logits_N: Tensor, fitted: Platt
) -> tuple[Metrics, Metrics]:
    """The contents of metrics.json and curves.json: the headline policy, every policy apart, and
    references that need no training: the target's entropy (FLy, arXiv 2511.22972), the draft
    token's probability against the best one, and the agreement of both models (KL judge, arXiv
    2601.04766), each with a map fitted as the head's.
    """
    references = {"entropy": rows.scalar("entropy"), "logprob-ratio": -rows.scalar("gap")}
    if rows.kl.isfinite().all():
        references["kl"] = -rows.kl
    has_gated = bool((parts.test & (rows.policy == Policy.GATED)).any())
    policy = "gated" if has_gated else "all"
    metrics, reliable = measure_score(rows, parts.test, logits_N, fitted, policy)
    metrics["problems"] = {
        name: len(rows.problem[mask].unique()) for name, mask in vars(parts).items()
    }
    metrics["references"] = {}
    unseen = parts.calibration
    for name, score_N in references.items():
        fitted = fit_platt(score_N[unseen], rows.kept[unseen])
        measured = measure_score(rows, parts.test, score_N, fitted, policy)
        metrics["references"][name] = measured[0]
    return metrics, {"policy": policy, "reliability": reliable}


def measure_score(
    rows: Rows, test_N: Tensor, score_N: Tensor, fitted: Platt, headline: str
) -> tuple[Metrics, list[Metrics]]:
    """Metrics of one score on the test part, and its reliability."""
    columns = [column.double().numpy() for column in (rows.kept, score_N, fitted(score_N.float()))]
    masks = {policy.name.lower(): test_N & (rows.policy == policy) for policy in Policy}
    by_policy = {}
    for name, mask in {"all": test_N, **masks}.items():
        kept, score, probability = (column[mask.numpy()] for column in columns)
        if len(kept):
            by_policy[name] = measure(kept, score, probability)
        if name == headline:
            reliable = reliability(kept, probability)
    return {"policy": headline, **by_policy[headline], "policies": by_policy}, reliable
