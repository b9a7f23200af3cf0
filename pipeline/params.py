"""The schema of params.yaml. Values, meanings and units stand in params.yaml alone."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from gistgate.core.features import layers_needed, needs_q, split_id
from gistgate.core.heads import HEADS
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
    num_fewshot: Natural | None
    chat_template: bool
    system: str | None
    arguments: dict[str, Any]


@block
class PromptsParams:
    train: Count
    development: Count
    calibration: Count
    draw: Count
    guard: Natural
    draft: Natural
    test: Count


@block
class WorldParams:
    kind: Literal["similar", "neutral", "shifted"]
    skew: Positive
    dialect_distance: Share
    ornaments: bool
    min_steps: Annotated[int, between(1, 4)]
    max_steps: Annotated[int, between(1, 4)]
    max_total: Annotated[int, between(20, 999)]
    task_train: Count
    task_test: Count

    def __post_init__(self) -> None:
        if self.min_steps > self.max_steps:
            raise UserError(
                "params.yaml: 'world.min_steps' is more than 'world.max_steps'. Raise the latter."
            )
        if self.kind == "neutral":  # both models use any wording alike, and no ornament
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
    hidden_size: Count
    layers: Count
    heads: Count
    kv_heads: Count
    intermediate_size: Count
    documents: Count
    batch_size: Count
    steps: Count
    lr: Rate
    matrix_lr: Rate


@block
class PairTrainingParams:
    target: ModelTraining
    draft: ModelTraining
    warmup: Annotated[Number, between(0, 0.99)]
    check_problems: Natural
    min_target_accuracy: Share


@block
class DecodingParams:
    block: Count
    strict_block: Count
    max_new_tokens: Count
    batch_size: Count
    workers: Count
    prompt_memory_mb: Natural

    @property
    def deciding(self) -> dict[str, int]:
        """What of this block decides about texts; the rest changes how fast they are written."""
        return {name: getattr(self, name) for name in ("block", "max_new_tokens", "batch_size")}


@block
class EngineParams:
    answers: Literal["own", "vllm"]
    rollouts: Literal["own", "vllm"]
    arguments: dict[str, Any]


@block
class CollectParams:
    shard_prompts: Count
    solved_only: bool
    strict_share: Share
    pilot_risk: Share
    recipe: Literal["walk", "text"]
    rejoin: Count | None


@block
class LabelParams:
    recipe: Literal["outcome", "answers"]
    longest: Positive | None
    price: Positive | None
    batch_size: Count
    rejoin: Count | None
    audit: Natural
    rollouts: Count
    temperature: Positive
    budget: Count | None
    strategy: Literal["uncertain", "random"]


@block
class TrainParams:
    features: tuple[str, ...]
    extra_features: tuple[str, ...]
    pilot_features: tuple[str, ...]
    heads: tuple[str, ...]
    headline_head: str
    test_share: Share
    calibration_share: Share
    validation_share: Share
    c: tuple[Annotated[Number, between(1e-9)], ...]
    folds: Annotated[int, between(2)]
    epochs: Count
    patience: Count
    batch_size: Count
    lr: Positive
    weight_decay: Positive
    hidden: Count
    dropout: Annotated[Number, between(0, 0.95)]
    span: Count
    span_features: tuple[str, ...]

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


def kind_of(head: str) -> str:
    """The kind of a head, without what it sees besides the common features."""
    return head.partition("+")[0]


@block
class DatastoreParams:
    layer: str
    key_size: Count


@block
class SegmentParams:
    style: str
    limit: Annotated[int, between(2)]
    problems: Count
    prefixes: Count
    samples: Annotated[int, between(2)]
    temperature: Annotated[Number, between(1e-6)]
    judge: Literal["answer", "exact"]
    shard_problems: Count
    pooling: Literal["mean", "last", "attention"]
    hidden: Count
    epochs: Count
    patience: Natural
    lr: Positive
    batch_size: Count
    head: str


@block
class CalibrateParams:
    budgets: tuple[Share, ...]
    confidence: Annotated[Number, between(0.5, 0.9999)]
    looks: Count
    growth: Positive | None
    fluency: Positive | None
    stop: Literal["planned", "lost"]
    settings: Natural
    evaluations: Count
    reserve: Annotated[Number, between(0, 3)]


@block
class BenchmarkParams:
    prompts: Count
    development: Count
    repeats: Count
    threads: Count
    engine: Literal["eager", "compiled"]


@block
class AdversarialParams:
    prompts: Count


LATER: dict[Any, dict[str, Any]] = {
    LabelParams: {"longest": None, "price": None},
    PromptingParams: {"arguments": {}},
    PromptsParams: {"draft": 0},
    CalibrateParams: {"growth": None, "fluency": None},
    EngineParams: {"answers": "own"},
    MethodParams: {"batch_size": None, "engine": None},
}
"""Keys that came after prompts were judged: at these values they are not recorded, so that gates
keep their bytes, and looks their fingerprints.
"""


EAGER = "eager"
"""The engine of all that says no other."""
FORMER: dict[Any, dict[str, Any]] = {
    "choice": {
        "verify": 1.6,
        "cost": 0.42,
        "block": 8,
        "min_match": 2,
        "prior": 0.5,
        "weight": 16.0,
    },
    LabelParams: {"window": 16, "nats": 4.0},
    TrainParams: {"devices": 1, "map": "platt"},
    EngineParams: {"states": "own"},
    SegmentParams: {"judge_model": None, "similarity": 0.95, "loss": "bce"},
}
"""Blocks and keys that are gone, with the values that they had in the published run: they are
recorded still, for the same reason.
"""


def recorded(block: Any) -> dict[str, Any]:
    """The parameters of a block by name, as gates and fingerprints of looks have them."""
    values = asdict(block)
    for name, silent in LATER.get(type(block), {}).items():
        if values[name] == silent:
            del values[name]
    return FORMER.get(type(block), {}) | values


@block
class Params:
    """Everything a run depends on besides code and data."""

    pair: str
    task: str
    task_metric: str | None
    task_data: str | None
    documents: str
    allow_code: bool
    seed: Natural
    headline_budget: Share
    prompting: PromptingParams
    world: WorldParams
    pair_training: PairTrainingParams
    prompts: PromptsParams
    decoding: DecodingParams
    engine: EngineParams
    collect: CollectParams
    label: LabelParams
    train: TrainParams
    datastore: DatastoreParams
    segments: SegmentParams
    methods: dict[str, MethodParams]
    calibrate: CalibrateParams
    benchmark: BenchmarkParams
    adversarial: AdversarialParams

    def method(self, name: str) -> MethodParams:
        """The method of that name; a mistyped name, and a rule that the method does not fit, are
        refused.
        """
        if name not in self.methods:
            raise UserError(f"params.yaml has no method '{name}'. {nearest(name, self.methods)}")
        method = self.methods[name]
        check_method(name, method, self.train.heads)  # imports the rule, so no earlier than here
        return method

    def block_of(self, name: str) -> int:
        """K of a method, in tokens."""
        return self.method(name).block or self.decoding.block

    def is_reference(self, name: str) -> bool:
        """Whether a method decodes exactly as the stage `reference` does."""
        method = self.method(name)
        is_strict = method.rule == "exact" and method.drafter == MODEL
        decoder = (self.block_of(name), self.rows_of(name), self.engine_of(name))
        reference = (self.decoding.block, self.decoding.batch_size, EAGER)
        return is_strict and decoder == reference

    def engine_of(self, name: str) -> str:
        """The engine on which a method decodes where its answers are judged."""
        return self.method(name).engine or EAGER

    def rows_of(self, name: str) -> int:
        """Rows that a method decodes together where its answers are judged."""
        return self.method(name).batch_size or self.decoding.batch_size


def read_params(path: Path = PARAMS) -> Params:
    """Read params.yaml; methods that draft with "model" get the drafter of the pair."""
    params = parse_params(read_yaml(path))
    file = PAIRS / f"{params.pair}.yaml"
    content = read_yaml(file) if file.is_file() else {}  # a missing file the stage `pair` refuses
    drafter = content.get("drafter", MODEL) if isinstance(content, dict) else MODEL
    if drafter != MODEL:
        params = with_drafter(params, drafter)
    if params.engine.answers == "vllm":
        check_served(params)
    return params


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
    """Features and kinds of heads exist."""
    for key in ("features", "extra_features", "pilot_features", "span_features"):
        try:
            for name in getattr(train, key):
                split_id(name)
        except UserError as error:
            raise UserError(f"params.yaml: 'train.{key}': {error}") from error
    kinds = ("logistic", "effects", *HEADS)
    for kind in map(kind_of, train.heads):
        if kind not in kinds:
            raise UserError(f"params.yaml: 'train.heads' names '{kind}'. {nearest(kind, kinds)}")


def check_served(params: Params) -> None:
    """Refuse what vLLM with the plug-in cannot do, before anything is computed."""
    from gistgate.vllm.policy import SERVED_RULES

    if params.decoding.batch_size == 1:
        raise UserError(
            "params.yaml: decoding.batch_size 1 times single requests, and engine.answers is vllm,"
            " which answers them together. Raise it, or set engine.answers to own."
        )
    if params.calibrate.fluency is not None:
        raise UserError(
            "params.yaml: calibrate.fluency reads answers with the target in memory, and"
            " engine.answers is vllm. Set it to null, or engine.answers to own."
        )
    hindrances = []
    for name, method in params.methods.items():
        rule = kind_of_rule(method.rule).id
        features = params.train.features_of(method.head) if method.head else ()
        if method.engine or method.batch_size:
            hindrances.append(f"'{name}' (an engine or batch_size of its own)")
        elif method.drafter not in (MODEL, "lookup"):
            hindrances.append(f"'{name}' (drafter {method.drafter})")
        elif rule not in ("exact", *SERVED_RULES):
            hindrances.append(f"'{name}' (rule {rule})")
        elif needs_q(features) or layers_needed(features) - {"post"}:
            hindrances.append(f"'{name}' (its gate reads {', '.join(features)})")
    if hindrances:
        raise UserError(
            f"params.yaml: engine.answers is vllm, which cannot run {', '.join(hindrances)}. Remove"
            " these methods, or set engine.answers to own."
        )


def with_drafter(params: Params, drafter: str) -> Params:
    """The parameters of a pair without a draft model: its drafter in the place of "model", no draft
    probabilities.
    """
    train = params.train
    lost = {head for head in train.heads if needs_q(head.split("+")[1:])}
    reads_q = {
        "train.headline_head": train.headline_head in lost,
        "train.features": needs_q(train.features),
        "train.pilot_features": needs_q(train.pilot_features),
    }
    for name, method in params.methods.items():
        reads_q[f"methods.{name}.rule"] = "q" in kind_of_rule(method.rule).needs
        reads_q[f"methods.{name}.after"] = method.head in lost
    for place in (place for place, reads in reads_q.items() if reads):
        raise UserError(
            f"params.yaml: '{place}' reads draft probabilities, and the pair's drafter"
            f" '{drafter}' has none. Name another, or remove it."
        )
    methods = dict(params.methods)
    for name, method in methods.items():
        if method.drafter == MODEL:
            methods[name] = replace(method, drafter=drafter)
    heads = tuple(head for head in train.heads if head not in lost)
    extra = tuple(name for name in train.extra_features if not needs_q([name]))
    return replace(params, methods=methods, train=replace(train, heads=heads, extra_features=extra))
