"""The dials of the embedded world and of the training of its pair (blocks `world` and `pair_training`)."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from gistgate.errors import UserError
from pipeline.common.reading import Count, Natural, Number, Share, between, block

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
