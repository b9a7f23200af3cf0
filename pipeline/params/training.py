"""The block about gate heads: what they see, which kinds are trained, how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gistgate.errors import UserError
from pipeline.params.reading import Between

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class TrainParams:
    """Gate heads."""

    features: tuple[str, ...] = ("h_tok:post", "h_pred:post", "scalars")
    """What a head sees of each position, as feature ids."""
    heads: tuple[str, ...] = ("logistic", "linear", "mlp")
    """Kinds of head to train, as head ids."""
    headline_head: str = "logistic"
    """The head that is exported, chosen on development prompts."""
    test_share: Share = 0.2
    """Share of the problems that only measures, in [0, 1]."""
    calibration_share: Share = 0.15
    """Share of the problems that only fits the probability map, in [0, 1]."""
    map: str = "platt"
    """Probability map of the scores: platt or isotonic."""
    c: Annotated[float, Between(0)] = 0.02
    """Inverse regularisation strength of the logistic head (scikit-learn's C)."""
    epochs: Annotated[int, Between(1)] = 30
    """Passes of the Lightning heads over their labels, in epochs."""
    batch_size: Annotated[int, Between(1)] = 256
    """Labels per optimiser step of the Lightning heads, in rows."""
    lr: Annotated[float, Between(0)] = 0.001
    """Peak learning rate of the Lightning heads."""
    weight_decay: Annotated[float, Between(0)] = 0.01
    """Weight decay of the Lightning heads."""
    hidden: Annotated[int, Between(1)] = 64
    """Width of the mlp head, in units."""

    def __post_init__(self) -> None:
        if self.headline_head not in self.heads:
            raise UserError(
                f"params.yaml: 'train.headline_head' is '{self.headline_head}', which is not among 'train.heads' "
                f"({', '.join(self.heads)}). Add it there or choose one of them."
            )
        if self.test_share + self.calibration_share >= 1:
            raise UserError(
                "params.yaml: 'train.test_share' and 'train.calibration_share' leave no problem to train on. "
                "Their sum has to be below 1."
            )
