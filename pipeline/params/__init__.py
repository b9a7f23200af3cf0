"""params.yaml as frozen dataclasses, a module for each kind of block; every field says its unit."""

from __future__ import annotations

import os
from dataclasses import field, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from gistgate.errors import UserError
from pipeline.common.reading import FILE, Natural, Share, block, build, nearest
from pipeline.common.yaml_file import read_yaml
from pipeline.pairs.world.params import PairTrainingParams, WorldParams
from pipeline.params.data import PromptingParams, PromptsParams
from pipeline.params.decoding import CollectParams, DecodingParams, EngineParams, LabelParams
from pipeline.params.drafting import check_probabilities, drafter_of, heads_without, with_drafter
from pipeline.params.methods import MethodGroups, MethodParams, mark_learned
from pipeline.params.results import AdversarialParams, BenchmarkParams, CalibrateParams, TrackingParams
from pipeline.params.training import TrainParams, kind_of

__all__ = [
    "AdversarialParams",
    "BenchmarkParams",
    "CalibrateParams",
    "CollectParams",
    "DecodingParams",
    "EngineParams",
    "LabelParams",
    "MethodParams",
    "PairTrainingParams",
    "Params",
    "PromptingParams",
    "PromptsParams",
    "TrackingParams",
    "TrainParams",
    "WorldParams",
    "read_params",
]


@block
class Params:
    """Everything a run depends on besides code and data."""

    pair: str = "embedded"
    """Which target and draft, a file name in models/pairs/ without its ending."""
    task: str = "wordproblems"
    """Which evaluation defines meaning, a file name in data/tasks/ without its ending or an lm-eval task name."""
    task_metric: str | None = None
    """Metric and filter that decide, as lm-eval writes them ("exact_match,strict-match"); None: the task's first."""
    task_data: str | None = None
    """Folder with one .jsonl file per split that replaces the task's own data; None loads what the task names."""
    allow_code: bool = False
    """Whether a task may run programs that the model writes, yes or no; they run with limits, but in no container."""
    seed: Natural = 1
    """Seed of everything random."""
    headline_budget: Share = 0.03
    """Loss against strict at which methods are compared, as a share of prompts; fixed before any result."""
    prompting: PromptingParams = field(default_factory=PromptingParams)
    """How documents become prompts."""
    world: WorldParams = field(default_factory=WorldParams)
    """Dials of the embedded word problems."""
    pair_training: PairTrainingParams = field(default_factory=PairTrainingParams)
    """Training of the embedded pair."""
    prompts: PromptsParams = field(default_factory=PromptsParams)
    """Sizes of the splits."""
    decoding: DecodingParams = field(default_factory=DecodingParams)
    """Shapes of decoding."""
    engine: EngineParams = field(default_factory=EngineParams)
    """What makes rollouts and reads states."""
    collect: CollectParams = field(default_factory=CollectParams)
    """Mining of mismatches."""
    label: LabelParams = field(default_factory=LabelParams)
    """Labelling of mismatches."""
    train: TrainParams = field(default_factory=TrainParams)
    """Gate heads."""
    methods: dict[str, MethodParams] = field(default_factory=dict)
    """What is compared, by name; the file keeps methods.free and methods.learned apart, here they are one."""
    calibrate: CalibrateParams = field(default_factory=CalibrateParams)
    """Budgets and confidence."""
    benchmark: BenchmarkParams = field(default_factory=BenchmarkParams)
    """Measurement of speed."""
    adversarial: AdversarialParams = field(default_factory=AdversarialParams)
    """Prompts that try to lead a decoder astray."""
    tracking: TrackingParams = field(default_factory=TrackingParams)
    """Record of runs."""

    @property
    def reports(self) -> Path:
        """Where the results of these methods are put together."""
        return Path("reports/table" if any(method.extra for method in self.methods.values()) else "reports")

    def method(self, name: str) -> MethodParams:
        """The method of that name.

        Raises:
            UserError: there is none; the nearest name is offered.
        """
        if name not in self.methods:
            raise UserError(f"params.yaml has no method '{name}'. {nearest(name, self.methods)}")
        return self.methods[name]

    def block_of(self, name: str) -> int:
        """K of a method, in tokens."""
        return self.method(name).block or self.decoding.block


def read_params(path: str | Path | None = None) -> Params:
    """Read `path`, else the file that GISTGATE_PARAMS names, else params.yaml of the working directory.

    Methods that draft with "model" get the drafter of the pair.

    Raises:
        UserError: the file is missing or no YAML, or holds an unknown key, a wrong type or a value out of range, or a
            method does not go with the pair's drafter.
    """
    params = parse_params(read_yaml(Path(path or os.environ.get("GISTGATE_PARAMS") or FILE)))
    drafter = drafter_of(params.pair)
    check_probabilities(params.methods, params.train, drafter)
    methods, train = with_drafter(params.methods, drafter), heads_without(params.train, drafter)
    return replace(params, methods=methods, train=train)


def parse_params(content: Any) -> Params:
    """Parameters from the file's content as plain dictionaries and lists."""
    if not isinstance(content, dict):
        raise UserError("params.yaml has to be a block of keys. Start from the file that comes with the project.")
    rest = {key: value for key, value in content.items() if key != "methods"}
    asked = content["methods"] if "methods" in content else default_methods()
    groups = build(MethodGroups, mark_learned(asked), "methods")
    params = replace(build(Params, rest), methods=one_dictionary(groups))
    check_rules(params)
    check_heads(params)
    check_names(params.train)
    return params


def default_methods() -> Any:
    """The methods that are compared where the file names none, as the file would name them."""
    return yaml.safe_load((files("gistgate.project") / "shared/methods.yaml").read_text(encoding="utf-8"))


def one_dictionary(groups: MethodGroups) -> dict[str, MethodParams]:
    """All methods by name, in the order of the file's groups."""
    methods: dict[str, MethodParams] = {}
    for group in (groups.lossless, groups.free, groups.learned):
        twice = methods.keys() & group.keys()
        if twice:
            raise UserError(f"params.yaml: the method '{min(twice)}' stands in two groups of 'methods'. Rename one.")
        methods.update(group)
    for name, method in groups.lossless.items():
        if method.knob is not None:
            raise UserError(f"params.yaml: 'methods.lossless.{name}' has a knob. Move it to 'methods.free'.")
    return methods


def check_rules(params: Params) -> None:
    """Every method names a rule that exists, and the knob of its rule, whose grid goes from strict to loose.

    The rules are imported by name: this check can only refuse, and an ordinary import would let every stage, the
    training of the pair included, run again whenever a rule changes.
    """
    rules = import_module("gistgate.rules")
    known = [*rules.RULES, *rules.PRESETS]
    for name, method in params.methods.items():
        if method.rule not in known:
            raise UserError(
                f"params.yaml: the method '{name}' has the rule '{method.rule}', which does not exist. "
                f"{nearest(method.rule, known, 'rules')}"
            )
        kind = rules.RULES[rules.meant(method.rule)[0]]
        if method.knob is None and kind.knob is not None:
            raise UserError(
                f"params.yaml: the method '{name}' has no knob, so that nothing certifies it. "
                f"Give it 'knob: {kind.knob}' and a 'grid', which may have a single value."
            )
        rises = len(method.grid) > 1 and method.grid[0] < method.grid[1]
        if len(method.grid) > 1 and method.knob == kind.knob and rises != (kind.looser == "up"):
            raise UserError(
                f"params.yaml: the grid of the method '{name}' goes from loose to strict: {list(method.grid)}. Turn it "
                f"round; a {'larger' if kind.looser == 'up' else 'smaller'} '{kind.knob}' accepts more."
            )


def check_names(train: TrainParams) -> None:
    """Features, kinds of heads and the probability map exist; imported by name, as in `check_rules`."""
    features, gates = import_module("gistgate.gates.features"), import_module("gistgate.gates.heads")
    for key in ("features", "extra_features", "pilot_features"):
        for name in getattr(train, key):
            try:
                features.split_id(name)
            except UserError as error:
                raise UserError(f"params.yaml: 'train.{key}': {error}") from error
    maps = import_module("gistgate.gates.calibration").MAPS
    asked = [("heads", kind_of(head), ("logistic", *gates.HEADS)) for head in train.heads]
    for key, name, known in [*asked, ("map", train.map, tuple(maps))]:
        if name not in known:
            raise UserError(f"params.yaml: 'train.{key}' names '{name}'. {nearest(name, known, 'names')}")


def check_heads(params: Params) -> None:
    """Every learned method asks a head that is trained."""
    for name, method in params.methods.items():
        if method.head is not None and method.head not in params.train.heads:
            raise UserError(
                f"params.yaml: 'methods.learned.{name}.head' is '{method.head}', which is not among 'train.heads'. "
                f"{nearest(method.head, params.train.heads)}"
            )
