"""The schema of params.yaml: dataclasses with defaults. What a key means and its unit stand in
params.yaml alone.
"""

import os
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from gistgate.core.utils import UserError, nearest
from pipeline.methods import (
    MODEL,
    Count,
    MethodParams,
    Natural,
    Number,
    Positive,
    Share,
    between,
    block,
    build,
    check_method,
    kind_of_rule,
)
from pipeline.paths import PAIRS, PARAMS, read_yaml


@block
class PromptingParams:
    num_fewshot: Natural | None = 0
    chat_template: bool = False
    system: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@block
class PromptsParams:
    train: Count = 320
    development: Count = 200
    calibration: Count = 700
    draw: Count = 1
    guard: Natural = 300
    test: Count = 600


@block
class WorldParams:
    kind: Literal["similar", "neutral", "shifted"] = "similar"
    skew: Positive = 2.0
    dialect_distance: Share = 0.8
    ornaments: bool = True
    min_steps: Annotated[int, between(1, 4)] = 2
    max_steps: Annotated[int, between(1, 4)] = 3
    max_total: Annotated[int, between(20, 999)] = 99
    task_train: Count = 4000
    task_test: Count = 2000

    def __post_init__(self) -> None:
        if self.min_steps > self.max_steps:
            raise UserError(
                "params.yaml: 'world.min_steps' is more than 'world.max_steps'. Raise the latter."
            )
        if (
            self.kind == "neutral"
        ):  # both models tell a problem alike, in any of its wordings, and without ornament
            for name, value in {"skew": 0.0, "dialect_distance": 0.0, "ornaments": False}.items():
                object.__setattr__(self, name, value)

    @property
    def numbers(self) -> tuple[int, int]:
        """Smallest and largest number that a problem may start with."""
        low, high = (40, 99) if self.kind == "shifted" else (3, 60)
        return min(low, self.max_total), min(high, self.max_total)


Rate = Annotated[Number, between(1e-12)]


@block
class ModelTraining:
    hidden_size: Count = 256
    layers: Count = 4
    heads: Count = 4
    kv_heads: Count = 2
    intermediate_size: Count = 704
    documents: Count = 16000
    batch_size: Count = 32
    steps: Count = 500
    lr: Rate = 0.006
    matrix_lr: Rate = 0.02

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise UserError(
                "params.yaml: heads of 'pair_training' divide its width and are a multiple of"
                " kv_heads."
            )


@block
class DraftTraining(ModelTraining):
    hidden_size: Count = 128
    layers: Count = 2
    intermediate_size: Count = 352
    documents: Count = 11200
    steps: Count = 350


@block
class PairTrainingParams:
    target: ModelTraining = field(default_factory=ModelTraining)
    draft: DraftTraining = field(default_factory=DraftTraining)
    warmup: Annotated[Number, between(0, 0.99)] = 0.05
    check_problems: Natural = 200
    min_target_accuracy: Share = 0.9


@block
class DecodingParams:
    block: Count = 8
    strict_block: Count = 4
    max_new_tokens: Count = 160
    batch_size: Count = 128
    workers: Count = 2
    prompt_memory_mb: Natural = 1000

    @property
    def deciding(self) -> dict[str, int]:
        """What of this block decides about texts; the rest changes how fast they are written."""
        return {name: getattr(self, name) for name in ("block", "max_new_tokens", "batch_size")}


@block
class EngineParams:
    rollouts: Literal["own", "vllm"] = "own"
    states: Literal["own", "vllm"] = "own"
    arguments: dict[str, Any] = field(default_factory=dict)


@block
class CollectParams:
    shard_prompts: Count = 160
    solved_only: bool = True
    strict_share: Share = 0.25
    pilot_risk: Share = 0.2
    recipe: Literal["walk", "text"] = "walk"
    rejoin: Count | None = None


@block
class LabelParams:
    recipe: Literal["outcome", "suffix", "both", "answers"] = "outcome"
    window: Count = 16
    nats: Positive = 4.0
    longest: Positive | None = None
    price: Positive | None = None
    batch_size: Count = 128
    rejoin: Count | None = 16
    audit: Natural = 96
    rollouts: Count = 3
    temperature: Positive = 0.7
    budget: Count | None = None
    strategy: Literal["uncertain", "random"] = "random"


@block
class TrainParams:
    features: tuple[str, ...] = ("h_tok:post", "h_pred:post", "scalars", "lookahead")
    extra_features: tuple[str, ...] = ("draft",)
    pilot_features: tuple[str, ...] = ("h_tok:post", "h_pred:post", "scalars", "lookahead")
    heads: tuple[str, ...] = ("logistic", "linear", "mlp", "logistic+draft")
    headline_head: str = "logistic"
    test_share: Share = 0.2
    calibration_share: Share = 0.15
    validation_share: Share = 0.1
    map: str = "platt"
    c: tuple[Annotated[Number, between(1e-9)], ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
    folds: Annotated[int, between(2)] = 5
    epochs: Count = 30
    patience: Count = 5
    batch_size: Count = 256
    lr: Positive = 0.003
    weight_decay: Positive = 0.01
    hidden: Count = 64
    dropout: Annotated[Number, between(0, 0.95)] = 0.1
    devices: Count = 1
    span: Count = 3
    span_features: tuple[str, ...] = ("h_tok:pre",)

    def features_of(self, head: str) -> tuple[str, ...]:
        """What a head sees, as feature ids."""
        return tuple(dict.fromkeys((*self.features, *head.split("+")[1:])))

    @property
    def all_features(self) -> tuple[str, ...]:
        """What may be seen by a head, as feature ids."""
        return tuple(dict.fromkeys((*self.features, *self.extra_features)))

    def __post_init__(self) -> None:
        for head in self.heads:
            if unknown := set(self.features_of(head)) - set(self.all_features):
                raise UserError(
                    f"params.yaml: '{head}' sees '{unknown.pop()}'. Add it to"
                    " 'train.extra_features'."
                )
        if self.headline_head not in self.heads:
            raise UserError(
                f"params.yaml: '{self.headline_head}' is not among 'train.heads'. Add it there."
            )
        if self.test_share + self.calibration_share + self.validation_share >= 1:
            raise UserError(
                "params.yaml: the shares of 'train' leave nothing to train on. Keep their sum"
                " below 1."
            )


def kind_of(head: str) -> str:
    """The kind of a head, without what it sees besides the common features."""
    return head.partition("+")[0]


@block
class DatastoreParams:
    layer: str = "post"
    key_size: Count = 64


@block
class SegmentParams:
    style: str = r"re:[,.\n]\s*$"
    limit: Annotated[int, between(2)] = 16
    problems: Count = 160
    prefixes: Count = 2
    samples: Annotated[int, between(2)] = 8
    temperature: Annotated[Number, between(1e-6)] = 0.7
    judge: Literal["answer", "exact", "nli", "embedding"] = "answer"
    judge_model: str | None = None
    similarity: Share = 0.95
    shard_problems: Count = 40
    pooling: Literal["mean", "last", "attention"] = "mean"
    loss: Literal["bce", "mse"] = "bce"
    hidden: Count = 64
    epochs: Count = 40
    patience: Natural = 6
    lr: Positive = 0.001
    batch_size: Count = 128
    head: str = "logistic"

    def __post_init__(self) -> None:
        if self.judge in ("nli", "embedding") and not self.judge_model:
            raise UserError(
                f"params.yaml: the judge '{self.judge}' needs a model: 'segments.judge_model'."
            )


@block
class ChoiceParams:
    verify: Annotated[Number, between(0.1, 100)] = 1.6
    cost: Annotated[Number, between(0, 10)] = 0.42
    block: Count = 8
    min_match: Natural = 2
    prior: Share = 0.5
    weight: Annotated[Number, between(0.1, 10_000)] = 16.0


@block
class CalibrateParams:
    budgets: tuple[Share, ...] = (0.02, 0.03, 0.05)
    confidence: Annotated[Number, between(0.5, 0.9999)] = 0.95
    looks: Count = 1
    growth: Positive | None = None
    stop: Literal["planned", "lost"] = "planned"
    settings: Count = 2
    evaluations: Count = 5
    reserve: Annotated[Number, between(0, 3)] = 1.0


@block
class BenchmarkParams:
    prompts: Count = 40
    development: Count = 8
    repeats: Count = 1
    threads: Count = 1
    engine: Literal["eager", "compiled"] = "eager"


@block
class AdversarialParams:
    prompts: Count = 16
    file: str | None = None


@block
class TrackingParams:
    experiment: str | None = None


LATER = {
    LabelParams: ("longest", "price"),
    PromptingParams: ("arguments",),
    CalibrateParams: ("growth",),
}
"""What came after prompts were judged: where it says nothing, gates keep their bytes, and looks
their fingerprints.
"""


def told(block: Any) -> dict[str, Any]:
    """The parameters of a block by name."""
    later = LATER.get(type(block), ())
    return {name: value for name, value in asdict(block).items() if value or name not in later}


@block
class Params:
    """Everything a run depends on besides code and data."""

    pair: str = "embedded"
    task: str = "wordproblems"
    task_metric: str | None = None
    task_data: str | None = None
    documents: str = "data/world"
    allow_code: bool = False
    seed: Natural = 1
    headline_budget: Share = 0.03
    prompting: PromptingParams = field(default_factory=PromptingParams)
    world: WorldParams = field(default_factory=WorldParams)
    pair_training: PairTrainingParams = field(default_factory=PairTrainingParams)
    prompts: PromptsParams = field(default_factory=PromptsParams)
    decoding: DecodingParams = field(default_factory=DecodingParams)
    engine: EngineParams = field(default_factory=EngineParams)
    collect: CollectParams = field(default_factory=CollectParams)
    label: LabelParams = field(default_factory=LabelParams)
    train: TrainParams = field(default_factory=TrainParams)
    datastore: DatastoreParams = field(default_factory=DatastoreParams)
    segments: SegmentParams = field(default_factory=SegmentParams)
    choice: ChoiceParams = field(default_factory=ChoiceParams)
    methods: dict[str, MethodParams] = field(default_factory=dict)
    calibrate: CalibrateParams = field(default_factory=CalibrateParams)
    benchmark: BenchmarkParams = field(default_factory=BenchmarkParams)
    adversarial: AdversarialParams = field(default_factory=AdversarialParams)
    tracking: TrackingParams = field(default_factory=TrackingParams)

    def method(self, name: str) -> MethodParams:
        """The method of that name; a mistyped one is refused, and one that its rule does not
        fit.
        """
        if name not in self.methods:
            raise UserError(f"params.yaml has no method '{name}'. {nearest(name, self.methods)}")
        check_method(
            name, self.methods[name], self.train.heads
        )  # only now: rules that nobody asks are not imported
        return self.methods[name]

    def block_of(self, name: str) -> int:
        """K of a method, in tokens."""
        return self.method(name).block or self.decoding.block


def read_params(path: str | Path | None = None) -> Params:
    """Read `path`, else the file that GISTGATE_PARAMS names, else params.yaml of the working
    directory. Methods that draft with "model" get the drafter of the pair."""
    params = parse_params(read_yaml(Path(path or os.environ.get("GISTGATE_PARAMS") or PARAMS)))
    file = PAIRS / f"{params.pair}.yaml"
    content = (
        read_yaml(file) if file.is_file() else None
    )  # about a missing file the stage `pair` complains
    named = content.get("drafter") if isinstance(content, dict) else None
    return with_drafter(params, named) if isinstance(named, str) and named != MODEL else params


def parse_params(content: Any) -> Params:
    """Parameters from the file's content as plain dictionaries and lists."""
    params = build(Params, content)
    check_names(params.train)
    by_answers = [params.label.recipe == "answers", params.label.price is not None]
    by_answers += [kind_of(head) == "effects" for head in params.train.heads]
    if any(by_answers) and not (all(by_answers) and params.collect.recipe == "text"):
        raise UserError(
            "params.yaml: label.recipe 'answers', a label.price and the head 'effects' (no other)"
            " belong together, and with them collect.recipe 'text'. Set all of them, or none."
        )
    return params


def check_names(train: TrainParams) -> None:
    """Features, kinds of heads and the probability map exist."""
    from gistgate.core import features, gate

    for key in ("features", "extra_features", "pilot_features", "span_features"):
        for name in getattr(train, key):
            try:
                features.split_id(name)
            except UserError as error:
                raise UserError(f"params.yaml: 'train.{key}': {error}") from error
    asked = [("heads", kind_of(head), ("logistic", "effects", *gate.HEADS)) for head in train.heads]
    for key, name, known in [*asked, ("map", train.map, tuple(gate.MAPS))]:
        if name not in known:
            raise UserError(f"params.yaml: 'train.{key}' names '{name}'. {nearest(name, known)}")


def with_drafter(params: Params, drafter: str) -> Params:
    """The parameters of a pair without a draft model: its drafter in the place of "model", no draft
    probabilities.
    """
    from gistgate.core.features import needs_q

    train = params.train
    reads = f"reads draft probabilities, and the pair's drafter '{drafter}' has none."
    extra = tuple(name for name in train.extra_features if not needs_q([name]))
    lost = {head for head in train.heads if not set(head.split("+")[1:]) <= set(extra)}
    for name, method in params.methods.items():
        if "q" in kind_of_rule(method.rule).needs:
            raise UserError(
                f"params.yaml: the method '{name}' has the rule '{method.rule}', which {reads}"
                " Remove it."
            )
    asked = {f"methods.{name}.after": method.head for name, method in params.methods.items()}
    for key, head in {**asked, "train.headline_head": train.headline_head}.items():
        if head in lost:
            raise UserError(
                f"params.yaml: '{key}' names the head '{head}', which {reads} Name another head."
            )
    for key in ("features", "pilot_features"):
        if needs_q(getattr(train, key)):
            raise UserError(f"params.yaml: 'train.{key}' names 'draft', which {reads} Remove it.")
    methods = {
        name: replace(method, drafter=drafter) if method.drafter == MODEL else method
        for name, method in params.methods.items()
    }
    heads = tuple(head for head in train.heads if head not in lost)
    return replace(params, methods=methods, train=replace(train, heads=heads, extra_features=extra))
