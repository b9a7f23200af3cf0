"""The dials of the embedded world and of the training of its pair (blocks `world` and `pair_training`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from gistgate.errors import UserError

SHIFTED_START = (40, 99)
"""Numbers that problems of the shifted world start with."""


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise UserError(message)


@dataclass(frozen=True)
class WorldParams:
    """What the problems are about and how they are told.

    The dials were set by the accuracy of both models and by strict verification alone; no gate was asked.
    """

    kind: str = "similar"
    """`similar`: the dials below. `neutral`: uniform wordings, one dialect and no ornaments, whatever the dials say.
    `shifted`: questions in a second dialect, and larger numbers; for problems that no certificate speaks of."""
    skew: float = 2.0
    """Exponent s of the wordings' frequencies, 1 / rank^s; 0 makes all wordings of a site equally frequent."""
    dialect_distance: float = 0.8
    """How far the draft's ranking of the wordings is from the target's: 0 the same, 1 unrelated."""
    ornaments: bool = True
    """Whether colours, containers, days, places and friends appear; they never change the answer."""
    min_steps: int = 2
    """Fewest operations of a problem."""
    max_steps: int = 3
    """Most operations of a problem."""
    max_total: int = 99
    """No intermediate total exceeds this; none falls below 1."""
    task_train: int = 4000
    """Problems in data/world/train.jsonl."""
    task_test: int = 2000
    """Problems in data/world/test.jsonl."""

    def __post_init__(self) -> None:
        kinds = ("similar", "neutral", "shifted")
        _check(self.kind in kinds, f"world.kind is '{self.kind}'. Choose one of: {', '.join(kinds)}.")
        _check(self.skew >= 0, f"world.skew is {self.skew}; a frequency exponent is 0 or more.")
        _check(0 <= self.dialect_distance <= 1, f"world.dialect_distance is {self.dialect_distance}, not in [0, 1].")
        _check(
            1 <= self.min_steps <= self.max_steps <= 4,
            f"world.min_steps {self.min_steps} and world.max_steps {self.max_steps} must satisfy 1 <= min <= max <= 4.",
        )
        _check(20 <= self.max_total <= 999, f"world.max_total is {self.max_total}; it lies between 20 and 999.")
        _check(min(self.task_train, self.task_test) >= 1, "world.task_train and world.task_test must be 1 or more.")

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


@dataclass(frozen=True)
class ModelTraining:
    """Size of one model and of its training."""

    hidden_size: int = 256
    """Width D of the residual stream."""
    layers: int = 4
    """Decoder layers."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key/value heads; few of them keep the cache small."""
    intermediate_size: int = 704
    """Width of the feed-forward layer."""
    documents: int = 16000
    """Problems in its corpus; the corpus is read again when the steps need more."""
    batch_size: int = 32
    """Documents per optimiser step."""
    steps: int = 500
    """Optimiser steps."""
    lr: float = 0.006
    """Peak learning rate of Adam on embeddings and norms."""
    matrix_lr: float = 0.02
    """Peak learning rate of Muon on the matrices."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _check(value > 0, f"pair_training has {name} {value}; it must be more than 0.")
        _check(
            self.hidden_size % self.heads == 0 and self.heads % self.kv_heads == 0,
            f"pair_training: {self.heads} heads must divide the width {self.hidden_size} "
            f"and be a multiple of {self.kv_heads} key/value heads.",
        )


def _draft() -> ModelTraining:
    return ModelTraining(hidden_size=128, layers=2, intermediate_size=352, documents=11200, steps=350)


@dataclass(frozen=True)
class PairTrainingParams:
    """How the embedded pair is trained."""

    target: ModelTraining = field(default_factory=ModelTraining)
    """The larger model, taught the target's dialect."""
    draft: ModelTraining = field(default_factory=_draft)
    """The smaller model, taught the draft's dialect."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises."""
    save_every: int = 50
    """Steps between checkpoints; an interrupted training loses at most this many."""
    check_problems: int = 200
    """Test problems answered greedily after the training, to report both accuracies."""
    min_target_accuracy: float = 0.9
    """Refuse the pair when the target answers fewer than this share; 0 accepts any."""

    def __post_init__(self) -> None:
        _check(0 <= self.warmup < 1, f"pair_training.warmup is {self.warmup}; it lies in [0, 1).")
        _check(self.save_every >= 1, f"pair_training.save_every is {self.save_every}; it must be 1 or more.")
        _check(self.check_problems >= 0, f"pair_training.check_problems is {self.check_problems}; 0 is the least.")
