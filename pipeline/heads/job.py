"""One head from its settings to its folder: fit, calibrate, measure, save."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gistgate.core.files import write_json
from gistgate.core.gate import HEADS, Gate, GateConfig
from gistgate.core.identity import ModelIdentity, TokenizerIdentity, identify_model, identify_tokenizer
from gistgate.core.utils import Registry
from pipeline.heads.data import Rows, split_by_problem
from pipeline.heads.fit import fit_logistic, fit_map, fit_net, head_sizes, num_knots
from pipeline.heads.metrics import measure_head
from pipeline.pair.pair import Pair
from pipeline.params import Params, TrainParams, kind_of

# ---- The pair that a gate is trained for, as the gate's config.json names it.


@dataclass(frozen=True)
class Partners:
    """Identities of the pair whose states and drafts were labelled."""

    target: ModelIdentity
    draft: ModelIdentity | None
    tokenizer: TokenizerIdentity


def partners_of(pair: Pair) -> Partners:
    """The identities of a loaded pair, under the names that the pair's file gives its models."""
    return Partners(
        identify_model(pair.target, pair.names.get("target")),
        identify_model(pair.draft, pair.names.get("draft")) if pair.draft is not None else None,
        identify_tokenizer(pair.tokenizer, pair.names.get("tokenizer")),
    )


COMMON = ("features", "test_share", "calibration_share", "validation_share", "map")
"""Settings of params.train that every head depends on."""
NET = ("epochs", "patience", "batch_size", "lr", "weight_decay", "hidden", "dropout")
OWN: Registry[tuple[str, ...]] = Registry(
    "gate head", {"logistic": ("c", "folds"), "linear": NET[:5], **{head: NET for head in HEADS if head != "linear"}}
)
"""The heads that can be trained, and the other settings that each depends on."""


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

    head: str
    """A head of params.train.heads: its kind is logistic or an id of gistgate.core.gate.HEADS."""
    config: GateConfig
    """The gate's configuration without what training finds out."""
    params: TrainParams
    seed: int

    def as_json(self) -> dict[str, Any]:
        """The settings that the fingerprint of a finished head is made of."""
        return {"head": self.head, "config": self.config.as_json(), "settings": settings_of(self.head, self.params)}

    def run(self, rows: Rows, scratch: Path) -> Trained:
        """Fit, calibrate and measure the head, each on problems of their own."""
        parts = split_by_problem(rows.problem, self.params, self.seed)
        net, report = self._fit(rows, parts.train, parts.validation, scratch)
        logits_N = logits_of(net, rows.x)
        fitted = fit_map(self.params.map, logits_N[parts.calibration], rows.kept[parts.calibration])
        metrics, curves = measure_head(rows, parts, logits_N, fitted, self.params.map)
        return Trained(self._gate(net, fitted), {**metrics, "training": report}, curves)

    def _fit(
        self, rows: Rows, train_N: Tensor, validation_N: Tensor, scratch: Path
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The head's net on raw features, and a report of its training."""
        kind = kind_of(self.head)
        if kind == "logistic":
            head, losses = fit_logistic(rows.where(train_N | validation_N), self.params.c, self.params.folds)
            return head, {"loss_by_c": losses}
        return fit_net(kind, rows.where(train_N), rows.where(validation_N), self.params, self.seed, scratch)

    def _gate(self, net: nn.Module, fitted: nn.Module) -> Gate:
        """The gate with the fitted weights in it."""
        config = self.config.as_json()
        config["map"]["num_knots"] = num_knots(fitted)
        gate = Gate(GateConfig.from_json(config, "the new gate"))
        gate.head.load_state_dict(net.state_dict())
        gate.map.load_state_dict(fitted.state_dict())
        return gate


def logits_of(net: nn.Module, x_NF: Tensor) -> Tensor:
    """The head's logits [N], computed as the gate will: in float32."""
    with torch.no_grad():
        return torch.cat([net(part) for part in x_NF.split(65536)])


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
    config = GateConfig(
        head={"type": kind, **sizes},
        features=dict(widths),
        target=partners.target,
        draft=partners.draft,
        tokenizer=partners.tokenizer,
        map={"type": params.train.map, "num_knots": 0},
        labels={**judged_by(params), **({"code": True} if params.allow_code else {}), **asdict(params.label)},
        prompting=asdict(params.prompting),
        provenance={
            "data": dict(data),
            "parameters": settings_of(head, params.train),
            "seed": params.seed,
            "trainer": head,
            "versions": versions(),
        },
        problems=problems,
    )
    return Job(head, config, params.train, params.seed)


def judged_by(params: Params) -> dict[str, Any]:
    """The task, its metric where the run names one, and the longest answer where the task names none."""
    limit = {"max_new_tokens": params.decoding.max_new_tokens}
    return {"task": params.task, **limit, **({"metric": params.task_metric} if params.task_metric else {})}


def versions() -> dict[str, str]:
    """Versions of the packages that the weights depend on."""
    packages = ("torch", "transformers", "scikit-learn", "pytorch-lightning")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
