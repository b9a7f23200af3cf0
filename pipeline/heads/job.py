"""One head from its settings to its folder: fit, calibrate, measure, save."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from gistgate.core.files import write_json
from gistgate.core.gate import HEADS, Gate, GateConfig, Isotonic
from gistgate.core.identity import ModelIdentity, TokenizerIdentity, identify_model, identify_tokenizer
from pipeline.heads.data import Rows, split_by_problem
from pipeline.heads.fit import fit_logistic, fit_map, fit_net, head_sizes
from pipeline.heads.metrics import measure_head
from pipeline.pair.pair import Pair
from pipeline.params import Params, TrainParams, kind_of

COMMON = ("features", "test_share", "calibration_share", "validation_share", "map")
"""Settings of params.train that every head depends on."""
NET = ("epochs", "patience", "batch_size", "lr", "weight_decay", "hidden", "dropout")
OWN = {"logistic": ("c", "folds"), "linear": NET[:5], **{head: NET for head in HEADS if head != "linear"}}
"""The heads that can be trained, and the other settings that each depends on."""


class Partners(NamedTuple):
    """Identities of the pair whose states and drafts were labelled, as the gate's config.json names them."""

    target: ModelIdentity
    draft: ModelIdentity | None
    tokenizer: TokenizerIdentity


def partners_of(pair: Pair) -> Partners:
    """The identities of a loaded pair, under the names that the pair's file gives its models."""
    draft = None if pair.draft is None else identify_model(pair.draft, pair.names.get("draft"))
    tokenizer = identify_tokenizer(pair.tokenizer, pair.names.get("tokenizer"))
    return Partners(identify_model(pair.target, pair.names.get("target")), draft, tokenizer)


@dataclass(frozen=True)
class Trained:
    """A trained head: its gate and what was measured."""

    gate: Gate
    metrics: dict[str, Any]
    curves: dict[str, Any]

    def save(self, folder: Path) -> None:
        """A gate folder with metrics.json and curves.json."""
        self.gate.save(folder)
        write_json(folder / "metrics.json", self.metrics)
        write_json(folder / "curves.json", self.curves)


@dataclass(frozen=True)
class Job:
    """Everything that a head depends on besides the code and the rows; `config.provenance` holds a hash of the rows."""

    head: str  # of params.train.heads: its kind is logistic or an id of gistgate.core.gate.HEADS
    config: GateConfig  # the gate's, without what training finds out
    params: TrainParams
    seed: int

    def as_json(self) -> dict[str, Any]:
        """The settings that the fingerprint of a finished head is made of."""
        return {"head": self.head, "config": self.config.as_json(), "settings": settings_of(self.head, self.params)}

    def run(self, rows: Rows, scratch: Path) -> Trained:
        """Fit, calibrate and measure the head, each on problems of their own."""
        params, kind = self.params, kind_of(self.head)
        parts = split_by_problem(rows.problem, params, self.seed)
        net: nn.Module
        if kind == "logistic":
            net, losses = fit_logistic(rows.where(parts.train | parts.validation), params.c, params.folds)
            report: dict[str, Any] = {"loss_by_c": losses}
        else:
            both = (rows.where(parts.train), rows.where(parts.validation))
            net, report = fit_net(kind, *both, params, self.seed, scratch)
        with torch.no_grad():  # computed as the gate will: in float32
            logits_N = torch.cat([net(part) for part in rows.x.split(65536)])
        fitted = fit_map(params.map, logits_N[parts.calibration], rows.kept[parts.calibration])
        metrics, curves = measure_head(rows, parts, logits_N, fitted, params.map)
        config = self.config.as_json()
        config["map"]["num_knots"] = fitted.knots.numel() if isinstance(fitted, Isotonic) else 0
        gate = Gate(GateConfig.from_json(config, "the new gate"))
        gate.head.load_state_dict(net.state_dict())
        gate.map.load_state_dict(fitted.state_dict())
        return Trained(gate, {**metrics, "training": report}, curves)


def settings_of(head: str, params: TrainParams) -> dict[str, Any]:
    """The settings of params.train that this head depends on."""
    values = asdict(params)
    values["features"] = params.features_of(head)
    return {name: values[name] for name in (*COMMON, *OWN[kind_of(head)])}


def head_job(
    head: str, params: Params, widths: Mapping[str, int], partners: Partners, data: Mapping[str, str], problems: str
) -> Job:
    """The job for one head; `data` holds the hash of every folder of features, `problems` those of all problems."""
    kind = "linear" if kind_of(head) == "logistic" else kind_of(head)
    sizes = {name: value for name, value in head_sizes(kind, 0, params.train).items() if name != "input_size"}
    judged_by = {  # the metric where the run names one, and the longest answer where the task names none
        "task": params.task,
        "max_new_tokens": params.decoding.max_new_tokens,
        **({"metric": params.task_metric} if params.task_metric else {}),
        **({"code": True} if params.allow_code else {}),
    }
    packages = ("torch", "transformers", "scikit-learn", "pytorch-lightning")
    config = GateConfig(
        head={"type": kind, **sizes},
        features=dict(widths),
        **partners._asdict(),
        map={"type": params.train.map, "num_knots": 0},
        labels={**judged_by, **asdict(params.label)},
        prompting=asdict(params.prompting),
        provenance={
            "data": dict(data),
            "parameters": settings_of(head, params.train),
            "seed": params.seed,
            "trainer": head,
            "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        },
        problems=problems,
    )
    return Job(head, config, params.train, params.seed)
