"""The block about gate heads: what they see, which kinds are trained, how."""

from __future__ import annotations

from typing import Annotated

from gistgate.errors import UserError
from pipeline.common.reading import Count, Number, Share, between, block


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
