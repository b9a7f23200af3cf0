"""params.yaml as frozen dataclasses, a module for each kind of block; every field says its unit."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import yaml
from pydantic import AllowInfNan, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gistgate.core.utils import UserError
from gistgate.rules import RULES
from pipeline.paths import PAIRS, STUDIES, read_yaml

# ---- From nested dictionaries to frozen dataclasses by pydantic; every refusal is one sentence that names the place.


T = TypeVar("T")
FILE = "params.yaml"
WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "a text",
    "tuple": "a list",
    "dict": "a block of keys",
    "dataclass": "a block of keys",
    "literal": "{expected}",
    "greater": "at least {ge:g}",
    "less": "at most {le:g}",
}
"""What a value has to be, by the first word of pydantic's name for the error."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def block(cls: type[T]) -> type[T]:
    """A frozen dataclass that `build` reads strictly; the text below a field becomes its description."""
    cls.__pydantic_config__ = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


def number(value: Any) -> Any:
    """A text that spells a number as that number; anything else unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def between(low: float | None = None, high: float | None = None) -> Any:
    """The range of a number, both ends included."""
    return Field(ge=low, le=high)


Number = Annotated[float, AllowInfNan(False), BeforeValidator(number)]
Share = Annotated[Number, between(0, 1)]
"""A part of a whole, in [0, 1]."""
Count = Annotated[int, between(1, 2**53)]
Natural = Annotated[int, between(0, 2**53)]


def read(cls: type[T], path: Path) -> T:
    """The dataclass `cls` from a YAML file.

    Raises:
        UserError: the file is missing or no YAML, or `build` refuses its content.
    """
    return build(cls, read_yaml(path), file=str(path))


def build(cls: type[T], content: Any, where: str = "", file: str = FILE) -> T:
    """The dataclass `cls` filled from nested dictionaries; `where` is their dotted place in `file`, for messages.

    Raises:
        UserError: an unknown or missing key, a wrong type, or a value out of range.
    """
    try:
        # As JSON, because strictness there still lets a list be a tuple and a whole number a number.
        return TypeAdapter(cls).validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        unknown = [detail for detail in error.errors() if detail["type"].startswith("unexpected")]
        raise UserError(f"{file}{sentence(cls, (unknown or error.errors())[0], where)}") from None


def sentence(cls: type, error: ErrorDetails, where: str) -> str:
    """What is wrong in a file and what to do, behind the file's name."""
    keys = [part for part in error["loc"] if isinstance(part, str)]
    place = ".".join([*([where] if where else []), *keys])
    if error["type"].startswith("unexpected"):
        return f" has an unknown key '{place}'. {nearest(keys[-1], known_keys(cls, keys[:-1]))}"
    if error["type"].startswith("missing"):
        return f" lacks the key '{place}'. Add it; the field has no default."
    wanted = WANTED.get(error["type"].split("_")[0], error["msg"]).format(**error.get("ctx", {}))
    subject = f"'{place}'" if place else "the file"
    return f": {subject} is {error['input']!r}, but it has to be {wanted}. Change the value."


def known_keys(hint: Any, path: list[str]) -> list[str]:
    """The keys of the block that `path` leads to from a type."""
    while get_origin(hint) in (Annotated, Union, UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return known_keys(hints[path[0]], path[1:]) if path else [field.name for field in fields(hint)]
    return known_keys(get_args(hint)[-1], path[1:])


def nearest(name: str, known: Iterable[str], kind: str = "keys") -> str:
    """A sentence that helps after a mistyped name."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known {kind}: {', '.join(sorted(known))}."


# ---- Blocks about what is decoded: how prompts are built, and how many of them each purpose gets.


@block
class PromptingParams:
    """How a document becomes a prompt; stored in the gate, because gates are trained on what users serve."""

    num_fewshot: Natural | None = 0
    """Solved examples in front of the question, in documents; None takes the task's own number."""
    chat_template: bool = False
    """Wrap the prompt in the tokenizer's chat template, yes or no."""
    system: str | None = None
    """System text of the chat template; None for none."""


@block
class PromptsParams:
    """How many prompts each split gets; the splits share no problem."""

    train: Count = 320
    """Prompts whose mismatches are labelled, in prompts."""
    development: Count = 300
    """Prompts on which settings and heads are chosen, in prompts."""
    calibration: Count = 1000
    """Prompts that certify the chosen settings, in prompts."""
    draw: Count = 1
    """Which draw of calibration prompts certifies, from 1 on; every draw has prompts of its own."""
    guard: Natural = 300
    """Prompts that the domain guard is fitted on, in prompts; 0 fits none."""
    test: Count = 1000
    """Prompts of the final claims, in prompts."""


# ---- Blocks about running the decoder: shapes, mining of mismatches, labelling.


@block
class DecodingParams:
    """Shapes of decoding that all stages share."""

    block: Count = 8
    """K, drafted tokens per target forward, in tokens; the common length at which methods are compared."""
    strict_block: Count = 4
    """K at which strict decoding is timed, in tokens: its own best."""
    max_new_tokens: Count = 160
    """Longest answer where the task sets no limit of its own, in tokens."""
    batch_size: Count = 128
    """Rows decoded together where only ids matter, in prompts; speed is always measured with one."""
    workers: Count = 2
    """Processes that share the methods or shards of a stage, each with one thread; more than one pays on a CPU."""
    prompt_memory_mb: Natural = 1000
    """Keys and values of prompts that calibration keeps between settings, and of texts that rollouts start from, in
    megabytes; 0 reads prompts anew."""

    @property
    def deciding(self) -> dict[str, int]:
        """What of this block decides about texts; the rest changes how fast they are written."""
        return {name: getattr(self, name) for name in ("block", "max_new_tokens", "batch_size")}


@block
class EngineParams:
    """What makes the rollouts of labels and reads the states of features."""

    rollouts: Literal["own", "vllm"] = "own"
    """"own" is this library's decoder; "vllm" is an engine that serves large targets, and needs the extra `vllm`."""
    states: Literal["own", "vllm"] = "own"
    """What the states of features come from: "own" is transformers, "vllm" as above."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of `vllm.LLM` besides model and dtype, such as tensor_parallel_size."""


@block
class CollectParams:
    """Mining of mismatches on the training prompts."""

    shard_prompts: Count = 160
    """Prompts per shard, in prompts; an interruption loses at most one shard."""
    solved_only: bool = True
    """Mine only problems that the target itself solves: what it gets wrong, any rewording may change, and nothing can
    be lost there."""
    strict_share: Share = 0.25
    """Share of the problems whose strict text is labelled whole as well, to report that policy apart."""
    pilot_risk: Share = 0.2
    """P(harm) up to which the pilot gate accepts while its texts are collected; looser than any served setting."""
    recipe: Literal["walk", "text"] = "walk"
    """Where strict mismatches come from: "walk", AutoJudge's recipe, takes them one after the other and keeps harmless
    draft tokens (arXiv 2504.20039); "text" takes those of the target's own texts, all at once."""
    rejoin: Count | None = None
    """As `label.rejoin`, for the rollouts of the walk; None lets each of them run until its answer is given."""


@block
class LabelParams:
    """What a label of a mismatch costs and how sure it is."""

    batch_size: Count = 128
    """Rollouts decoded together, in rows."""
    rejoin: Count | None = 16
    """Tokens in a row, behind the forced one, that have to equal the target's own answer before a rollout counts as
    harmless and stops; None lets every rollout end by itself."""
    audit: Natural = 96
    """Rollouts of each shard that always run to their end; if of those that rejoin fewer than 99 % keep the meaning,
    none of the shard stops early."""
    rollouts: Count = 3
    """Most continuations per uncertain mismatch, in rollouts; the first is greedy."""
    temperature: Annotated[Number, between(0)] = 0.7
    """Temperature of the rollouts behind the first."""
    budget: Count | None = None
    """Most mismatches of a pass whose outcome is found by rollouts, in labels; None labels all."""
    strategy: Literal["uncertain", "random"] = "random"
    """Which mismatches a budget buys: those whose harm the pilot gate is least sure of, or any. The strict pass, from
    which the pilot learns, always draws at random."""


# ---- The block about methods: which rule with which drafter, which settings compete, which knob is calibrated.


MODEL = "model"
"""The drafter of the pair: its draft model, or what its file names instead."""


@block
class MethodParams:
    """One line of the results table."""

    rule: str
    """Rule id, a key of gistgate.rules.RULES."""
    drafter: str = MODEL
    """Drafter id, a key of gistgate.drafters.DRAFTERS or pipeline.retrieval.RETRIEVAL; "model" is the
    pair's own drafter, "none" decodes plainly."""
    learned: bool = False
    """Whether the rule needs a trained gate; follows from the group the method stands in."""
    head: str | None = None
    """Head whose gate the rule asks, one of train.heads; None for rules without a gate."""
    block: Count | None = None
    """K of this method, in tokens; None takes decoding.block."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule that never change."""
    variants: tuple[dict[str, Any], ...] = ({},)
    """Settings of the rule of which development prompts choose one; each overrides `fixed`."""
    knob: str | None = None
    """The scalar setting that calibration moves; None for a rule without one."""
    grid: tuple[Number, ...] = ()
    """Values of the knob, from strict to loose, in the knob's own unit."""
    extra: bool = False
    """Whether only the large table has it."""

    def __post_init__(self) -> None:
        steps = [later - earlier for earlier, later in zip(self.grid, self.grid[1:], strict=False)]
        if (self.knob is None) != (not self.grid):
            raise UserError(f"params.yaml: a method of rule '{self.rule}' needs both 'knob' and 'grid', or neither.")
        if not (all(step > 0 for step in steps) or all(step < 0 for step in steps)):
            raise UserError(
                f"params.yaml: the grid of a method of rule '{self.rule}' goes up and down: {list(self.grid)}. "
                "Order it from strict to loose, without repetition."
            )
        if self.learned != (self.head is not None):
            raise UserError(
                f"params.yaml: a method of rule '{self.rule}' needs 'head' if and only if it is under "
                "'methods.learned'."
            )

    def settings(self, variant: dict[str, Any], value: float | None) -> dict[str, Any]:
        """All settings of the rule for one variant and one value of the knob."""
        knob = {} if self.knob is None else {self.knob: value}
        return {**self.fixed, **variant, **knob}


@block
class MethodGroups:
    """Methods as they stand in the file: apart by what they wait for."""

    lossless: dict[str, MethodParams] = field(default_factory=dict)
    """Methods without a knob: nothing to calibrate, by name."""
    free: dict[str, MethodParams] = field(default_factory=dict)
    """Methods that need no training, by name."""
    learned: dict[str, MethodParams] = field(default_factory=dict)
    """Methods that ask a trained gate, by name."""


def mark_learned(groups: Any) -> Any:
    """The block `methods` with `learned` filled in from the group each method stands in."""
    if not isinstance(groups, dict):
        return groups
    marked = dict(groups)
    if isinstance(marked.get("learned"), dict):
        marked["learned"] = {
            name: {"learned": True, **method} if isinstance(method, dict) else method
            for name, method in marked["learned"].items()
        }
    return marked


# ---- The block about gate heads: what they see, which kinds are trained, how.


def kind_of(head: str) -> str:
    """The kind of a head, without what it sees besides the common features."""
    return head.partition("+")[0]


@block
class TrainParams:
    """Gate heads."""

    features: tuple[str, ...] = ("h_tok:post", "h_pred:post", "scalars", "lookahead")
    """What a head sees of each position, as feature ids."""
    extra_features: tuple[str, ...] = ("draft",)
    """What only heads see that name it ("logistic+draft"), as feature ids."""
    pilot_features: tuple[str, ...] = ("h_tok:post", "h_pred:post", "scalars", "lookahead")
    """What the pilot gate sees, as feature ids; the gated texts depend on it, so a change repeats their rollouts."""
    heads: tuple[str, ...] = ("logistic", "linear", "mlp", "logistic+draft")
    """Heads to train: a kind, or a kind and what it sees besides `features`, such as "logistic+draft"."""
    headline_head: str = "logistic"
    """The head that is exported, chosen on development prompts."""
    test_share: Share = 0.2
    """Share of the problems that only measures, in [0, 1]."""
    calibration_share: Share = 0.15
    """Share of the problems that only fits the probability map, in [0, 1]."""
    validation_share: Share = 0.1
    """Share of the problems that only stops the training of Lightning heads, in [0, 1]."""
    map: str = "platt"
    """Probability map of the scores: platt or isotonic."""
    c: tuple[Annotated[Number, between(1e-9)], ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
    """Inverse regularisation strengths (scikit-learn's C) among which folds of unseen problems choose."""
    folds: Annotated[int, between(2)] = 5
    """Folds of that choice, in folds."""
    epochs: Count = 30
    """Passes of the Lightning heads over their labels at most, in epochs."""
    patience: Count = 5
    """Epochs without a better validation loss after which a Lightning head stops, in epochs."""
    batch_size: Count = 256
    """Labels per optimiser step of the Lightning heads, in rows."""
    lr: Annotated[Number, between(0)] = 0.003
    """Peak learning rate of the Lightning heads."""
    weight_decay: Annotated[Number, between(0)] = 0.01
    """Weight decay of the Lightning heads."""
    hidden: Count = 64
    """Width of the mlp head, in units."""
    dropout: Annotated[Number, between(0, 0.95)] = 0.1
    """Share of the mlp head's units that every training step leaves out, in [0, 1)."""
    devices: Count = 1
    """Processes that train one Lightning head together by Lightning's DDP, each on a GPU where there is one."""

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
                    f"params.yaml: the head '{head}' of 'train.heads' sees '{unknown.pop()}', which is not among "
                    f"'train.extra_features' ({', '.join(self.extra_features)}). Add it there."
                )
        if self.headline_head not in self.heads:
            raise UserError(
                f"params.yaml: 'train.headline_head' is '{self.headline_head}', which is not among 'train.heads' "
                f"({', '.join(self.heads)}). Add it there or choose one of them."
            )
        if self.test_share + self.calibration_share + self.validation_share >= 1:
            raise UserError(
                "params.yaml: 'train.test_share', 'train.calibration_share' and 'train.validation_share' leave no "
                "problem to train on. Their sum has to be below 1."
            )


# ---- What a pair's drafter means for the methods of params.yaml.


def drafter_of(pair: str, folder: Path = PAIRS) -> str:
    """The drafter of a pair; "model" where there is no file yet, about which the stage `pair` complains."""
    path = folder / f"{pair}.yaml"
    content = read_yaml(path) if path.is_file() else None
    named = content.get("drafter") if isinstance(content, dict) else None
    return named if isinstance(named, str) else MODEL


def with_drafter(methods: dict[str, MethodParams], drafter: str) -> dict[str, MethodParams]:
    """The methods, with the pair's drafter in the place of "model"."""
    return {
        name: replace(method, drafter=drafter) if method.drafter == MODEL else method
        for name, method in methods.items()
    }


def heads_without(train: TrainParams, drafter: str) -> TrainParams:
    """The heads that can be trained with a drafter: without draft probabilities none that asks for more than others."""
    if drafter == MODEL:
        return train
    extra, lost = extra_without_q(train), lost_heads(train)
    return replace(train, extra_features=extra, heads=tuple(head for head in train.heads if head not in lost))


def extra_without_q(train: TrainParams) -> tuple[str, ...]:
    """Those of `extra_features` that need no draft probabilities."""
    features = import_module("gistgate.core.features")
    return tuple(name for name in train.extra_features if not features.needs_q([name]))


def lost_heads(train: TrainParams) -> set[str]:
    """The heads that see draft probabilities besides what all heads see."""
    left = set(extra_without_q(train))
    return {head for head in train.heads if not set(head.split("+")[1:]) <= left}


def check_probabilities(methods: dict[str, MethodParams], train: TrainParams, drafter: str) -> None:
    """Refuse what reads draft probabilities where the pair's drafter has none.

    Rules and features are imported by name, as in `check_rules`: this check can only refuse.

    Raises:
        UserError: a rule, a feature or a head that is asked needs them.
    """
    if drafter == MODEL:
        return
    rules, features = import_module("gistgate.rules"), import_module("gistgate.core.features")
    for name, method in methods.items():
        if "q" in rules.RULES[rules.meant(method.rule)[0]].needs:
            raise UserError(
                f"params.yaml: the method '{name}' has the rule '{method.rule}', which reads draft probabilities, and "
                f"the pair's drafter '{drafter}' has none. Remove the method, or choose a pair with a draft model."
            )
    lost = lost_heads(train)
    asked = {f"methods.learned.{name}.head": method.head for name, method in methods.items()}
    for key, head in {**asked, "train.headline_head": train.headline_head}.items():
        if head in lost:
            raise UserError(
                f"params.yaml: '{key}' is '{head}', which reads draft probabilities, and the pair's drafter "
                f"'{drafter}' has none. Name another head of 'train.heads', or choose a pair with a draft model."
            )
    for key in ("features", "pilot_features"):
        if features.needs_q(getattr(train, key)):
            raise UserError(
                f"params.yaml: 'train.{key}' names 'draft', which reads draft probabilities, and the pair's drafter "
                f"'{drafter}' has none. Remove it, or choose a pair with a draft model."
            )


# ---- Blocks about the claims: calibration, benchmark, adversarial prompts, tracking.


@block
class CalibrateParams:
    """What counts as good enough, and how sure we want to be of it."""

    budgets: tuple[Share, ...] = (0.02, 0.03, 0.05)
    """Largest losses against strict that are certified, as shares of prompts."""
    confidence: Annotated[Number, between(0.5, 0.9999)] = 0.95
    """Confidence of every certificate, in [0.5, 1)."""
    looks: Count = 1
    """Looks at the same calibration prompts that are planned, in looks; each gets an equal part of the error."""
    stop: Literal["planned", "lost"] = "planned"
    """When a setting is left: behind the last prompt, or as soon as a wager shows that it loses the largest budget."""
    settings: Count = 3
    """Settings per method that development prompts may send to certification behind the strictest, in settings."""
    evaluations: Count = 5
    """Settings per method that development prompts may measure, in settings; each further variant allows one more."""
    reserve: Annotated[Number, between(0, 3)] = 1.0
    """What the choice of settings leaves free below a budget, in standard errors of the loss on calibration prompts
    minus that on development prompts."""


@block
class BenchmarkParams:
    """How speed is measured."""

    prompts: Count = 100
    """Test prompts that every method decodes, in prompts."""
    development: Count = 16
    """Development prompts on which transformers' speculation gets its K, in prompts; each is decoded at a dozen K."""
    repeats: Count = 1
    """Times every prompt is decoded by every method, in runs."""
    threads: Count = 1
    """Processor threads; one row of a small model gains nothing from more."""
    engine: str = "eager"
    """Engine of our own decoders: eager, or compiled, which builds programs for every method before it times any."""


@block
class AdversarialParams:
    """Prompts that try to lead a decoder astray."""

    prompts: Count = 25
    """Test prompts that are turned into four adversarial ones each, in prompts."""
    file: str | None = None
    """JSON lines with further prompts, named `prompt`, `question` or `turns`; None takes none."""


@block
class TrackingParams:
    """Where runs are recorded."""

    experiment: str | None = None
    """Name of the MLflow experiment; None makes it "<pair>/<task>"."""


# ---- The dials of the embedded world and of the training of its pair (blocks `world` and `pair_training`).


Rate = Annotated[Number, between(1e-12)]
"""A learning rate, above 0."""
SHIFTED_START = (40, 99)
"""Numbers that problems of the shifted world start with."""


@block
class WorldParams:
    """What the problems are about and how they are told.

    The dials were set by the accuracy of both models and by strict verification alone; no gate was asked.
    """

    kind: Literal["similar", "neutral", "shifted"] = "similar"
    """`similar`: the dials below. `neutral`: uniform wordings, one dialect and no ornaments, whatever the dials say.
    `shifted`: questions in a second dialect, and larger numbers; for problems that no certificate speaks of."""
    skew: Annotated[Number, between(0)] = 2.0
    """Exponent s of the wordings' frequencies, 1 / rank^s; 0 makes all wordings of a site equally frequent."""
    dialect_distance: Share = 0.8
    """How far the draft's ranking of the wordings is from the target's: 0 the same, 1 unrelated."""
    ornaments: bool = True
    """Whether colours, containers, days, places and friends appear; they never change the answer."""
    min_steps: Annotated[int, between(1, 4)] = 2
    """Fewest operations of a problem."""
    max_steps: Annotated[int, between(1, 4)] = 3
    """Most operations of a problem."""
    max_total: Annotated[int, between(20, 999)] = 99
    """No intermediate total exceeds this; none falls below 1."""
    task_train: Count = 4000
    """Problems in data/world/train.jsonl."""
    task_test: Count = 2000
    """Problems in data/world/test.jsonl."""

    def __post_init__(self) -> None:
        if self.min_steps > self.max_steps:
            raise UserError(
                f"params.yaml: 'world.min_steps' is {self.min_steps}, more than 'world.max_steps', which is "
                f"{self.max_steps}. Raise the latter."
            )

    @property
    def wording_skew(self) -> float:
        """The exponent in force (0 in the neutral world)."""
        return 0.0 if self.kind == "neutral" else self.skew

    @property
    def distance(self) -> float:
        """The dialect distance in force (0 in the neutral world)."""
        return 0.0 if self.kind == "neutral" else self.dialect_distance

    @property
    def has_ornaments(self) -> bool:
        """Whether ornaments appear (never in the neutral world)."""
        return self.kind != "neutral" and self.ornaments

    @property
    def numbers(self) -> tuple[int, int]:
        """Smallest and largest number that a problem may start with."""
        low, high = SHIFTED_START if self.kind == "shifted" else (3, 60)
        return min(low, self.max_total), min(high, self.max_total)


@block
class ModelTraining:
    """Size of one model and of its training."""

    hidden_size: Count = 256
    """Width D of the residual stream."""
    layers: Count = 4
    """Decoder layers."""
    heads: Count = 4
    """Query heads."""
    kv_heads: Count = 2
    """Key/value heads; few of them keep the cache small."""
    intermediate_size: Count = 704
    """Width of the feed-forward layer."""
    documents: Count = 16000
    """Problems in its corpus; the corpus is read again when the steps need more."""
    batch_size: Count = 32
    """Documents per optimiser step."""
    steps: Count = 500
    """Optimiser steps."""
    lr: Rate = 0.006
    """Peak learning rate of Adam on embeddings and norms."""
    matrix_lr: Rate = 0.02
    """Peak learning rate of Muon on the matrices."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads or self.heads % self.kv_heads:
            raise UserError(
                f"params.yaml: 'pair_training' has {self.heads} heads, which must divide the width {self.hidden_size} "
                f"and be a multiple of the {self.kv_heads} key/value heads. Change one of them."
            )


@block
class DraftTraining(ModelTraining):
    """The same for the draft, which is smaller."""

    hidden_size: Count = 128
    layers: Count = 2
    intermediate_size: Count = 352
    documents: Count = 11200
    steps: Count = 350


@block
class PairTrainingParams:
    """How the embedded pair is trained."""

    target: ModelTraining = field(default_factory=ModelTraining)
    """The larger model, taught the target's dialect."""
    draft: DraftTraining = field(default_factory=DraftTraining)
    """The smaller model, taught the draft's dialect."""
    warmup: Annotated[Number, between(0, 0.99)] = 0.05
    """Share of the steps over which the learning rate rises."""
    save_every: Count = 50
    """Steps between checkpoints; an interrupted training loses at most this many."""
    check_problems: Natural = 200
    """Test problems answered greedily after the training, to report both accuracies."""
    min_target_accuracy: Share = 0.9
    """Refuse the pair when the target answers fewer than this share; 0 accepts any."""


# ---- The blocks about methods that are built from further data: segments (SemanticSpec), datastore (SENSE), choice.


@block
class SegmentParams:
    """How segments are sampled, grouped by meaning and learned (arXiv 2602.03708)."""

    style: str = r"re:[,.\n]\s*$"
    """Where a segment ends: blank-line, sentence, step, or `re:` and a pattern; this one: clauses."""
    limit: Annotated[int, between(2)] = 16
    """Longest segment, in tokens; a segment that is cut there is not judged."""
    problems: Count = 160
    """Training problems whose texts are cut into prefixes."""
    prefixes: Count = 2
    """Prefixes of each problem: one at a segment's end, the others anywhere."""
    samples: Annotated[int, between(2)] = 8
    """Segments that each model writes behind each prefix."""
    temperature: Annotated[Number, between(1e-6)] = 0.7
    """Temperature of these samples."""
    judge: Literal["answer", "exact", "nli", "embedding"] = "answer"
    """Whose groups are the labels."""
    judge_model: str | None = None
    """Model of the judges nli and embedding; None for the others."""
    similarity: Share = 0.95
    """Least cosine of two texts in one group of the judge embedding."""
    shard_problems: Count = 40
    """Problems per shard; an interruption loses at most one."""
    pooling: Literal["mean", "last", "attention"] = "mean"
    """Pooling of the probes."""
    loss: Literal["bce", "mse"] = "bce"
    """Loss of the probes."""
    hidden: Count = 64
    """Width of the probes' hidden layer."""
    epochs: Count = 40
    """Passes over the samples, at most."""
    patience: Natural = 6
    """Epochs without a better validation loss after which training stops."""
    lr: Annotated[Number, between(0)] = 0.001
    """Learning rate."""
    batch_size: Count = 128
    """Samples per optimiser step."""
    head: str = "logistic"
    """Token gate inside refused segments, a head of models/heads."""
    reward_model: str | None = None
    """Model of the control prm; None leaves the control out."""

    def __post_init__(self) -> None:
        if self.judge in ("nli", "embedding") and not self.judge_model:
            raise UserError(
                f"params.yaml: the judge '{self.judge}' of 'segments' needs a model. Name one by segments.judge_model."
            )


@block
class DatastoreParams:
    """What the datastore keeps of every token."""

    layer: str = "post"
    """State of the target that becomes a key: `post`, or `layer:` and a number."""
    key_size: Count = 64
    """Width of a key."""


@block
class ChoiceParams:
    """What the drafter `choice` expects, measured beforehand: texts must not depend on the clock."""

    verify: Annotated[Number, between(0.1, 100)] = 1.6
    """v, a verification in plain forwards of the target."""
    cost: Annotated[Number, between(0, 10)] = 0.42
    """c, a step of the draft model in plain forwards of the target."""
    block: Count = 8
    """K, tokens at which promises are compared."""
    min_match: Natural = 2
    """Latest tokens that have to occur earlier in the text before prompt lookup is asked."""
    prior: Share = 0.5
    """Acceptance that every drafter begins a request with."""
    weight: Annotated[Number, between(0.1, 10_000)] = 16.0
    """Tokens that the prior counts for."""


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
    segments: SegmentParams = field(default_factory=SegmentParams)
    """Segments and their probes."""
    datastore: DatastoreParams = field(default_factory=DatastoreParams)
    """Hidden states for retrieval."""
    choice: ChoiceParams = field(default_factory=ChoiceParams)
    """Costs that the drafter `choice` expects."""
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
    return yaml.safe_load((files("gistgate.cli") / "shared/methods.yaml").read_text(encoding="utf-8"))


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
    features, gates = import_module("gistgate.core.features"), import_module("gistgate.core.gate")
    for key in ("features", "extra_features", "pilot_features"):
        for name in getattr(train, key):
            try:
                features.split_id(name)
            except UserError as error:
                raise UserError(f"params.yaml: 'train.{key}': {error}") from error
    maps = import_module("gistgate.core.gate").MAPS
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


# ---- pipeline/studies/table/params.yaml: the methods of the large table, which has every rule of the library.


FILE_TABLE = STUDIES / "table/params.yaml"


@block
class TableParams:
    """What `make table` compares besides `methods`: every rule with a knob that greedy decoding defines."""

    skip: tuple[str, ...] = ("wisv",)
    """Rules to leave out, by id."""
    fixed: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "csd": {"counts": "models/table/pairs.safetensors"},
            "trt-relaxed": {"scope": "all"},
            "typical": {"greedy": "raw"},
        }
    )
    """Settings of rules that differ from their defaults, by rule id."""
    heads: dict[str, str] = field(default_factory=lambda: {"judge": "judge"})
    """Head that a learned rule asks where it is not train.headline_head, by rule id."""
    mixed: dict[str, str] = field(default_factory=lambda: {"autojudge-draft": "logistic+draft"})
    """Methods that have the rule `autojudge` and another head than the headline one: the head by method name."""
    span: Count = 3
    """Draft tokens that share the label of the mismatch they begin with, for heads on span labels, in tokens."""
    span_features: tuple[str, ...] = ("h_tok:pre",)
    """What the head `judge` sees, as feature ids."""

    def __post_init__(self) -> None:
        for name in (*self.skip, *self.fixed, *self.heads):
            if name not in RULES:
                raise UserError(f"{FILE_TABLE} names an unknown rule '{name}'. {nearest(name, RULES)}")

    @property
    def wants_judge(self) -> bool:
        """Whether a rule is compared that asks the head on span labels."""
        return any(head == "judge" and rule not in self.skip for rule, head in self.heads.items())


def table_methods(table: TableParams, core: Mapping[str, MethodParams], headline_head: str) -> dict[str, MethodParams]:
    """The methods of the large table that the core lacks, by rule id, with the settings that the rules declare."""
    known = {method.rule for method in core.values()} | set(table.skip)
    wanted = {name: rule for name, rule in RULES.items() if name not in known and rule.temperatures != "sampled"}
    heads = {
        name: table.heads.get(name, headline_head) if "gate" in rule.needs else None for name, rule in wanted.items()
    }
    alone = {
        name: method_of(name, heads[name], table.fixed.get(name, {}))
        for name, rule in wanted.items()
        if rule.knob is not None
    }
    return {**alone, **{name: method_of("autojudge", head, {}) for name, head in table.mixed.items()}}


def method_of(rule: str, head: str | None, fixed: Mapping[str, Any]) -> MethodParams:
    """A method with the settings that its rule declares, and the gate of `head` if there is one."""
    declared = RULES[rule]
    return MethodParams(
        rule=rule,
        learned=head is not None,
        head=head,
        fixed=dict(fixed),
        variants=tuple(declared.variants),
        knob=declared.knob,
        grid=tuple(declared.grid),
        extra=True,
    )


def read_table_params() -> TableParams:
    """Read the study's file.

    Raises:
        UserError: it is missing, or holds an unknown key or rule, a wrong type or a value out of range.
    """
    return read(TableParams, FILE_TABLE)


def table_params(core: Params | None = None) -> Params:
    """The parameters of the run with the methods of the large table behind the core ones."""
    core = core or read_params()
    extra = table_methods(read_table_params(), core.methods, core.train.headline_head)
    return replace(core, methods={**core.methods, **with_drafter(extra, drafter_of(core.pair))})
