"""When a draft ends: behind the first token that is too unlikely to survive for what it costs
(docs/drafts.md).

Sampled requests stay lossless because a token that was drawn is always proposed, also the one that
ends the draft.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError, dataclass_from, refusing

IDENTITY = (
    (0.0, 0.0),
    (1.0, 1.0),
)  # the draft's probability taken for the probability that a token is accepted


@dataclass(frozen=True)
class Stopping:
    """A policy. It depends on texts and models alone, never on a clock."""

    floor: float  # estimated survival below which a draft ends, in [0, 1]
    points: tuple[tuple[float, float], ...] = (
        IDENTITY  # (probability, share accepted), linear between and rising
    )
    joint: bool = (
        True  # the survival of all tokens so far; False: of the last one, given those before it
    )
    measured: dict[str, Any] = field(
        default_factory=dict
    )  # what it was made for: rule, settings, K, costs and counts

    def __post_init__(self) -> None:
        flat = [value for point in self.points for value in point]
        rises = all(
            a[0] < b[0] and a[1] <= b[1] for a, b in zip(self.points, self.points[1:], strict=False)
        )
        if (
            not all(0 <= value <= 1 for value in (self.floor, *flat))
            or not rises
            or not self.points
        ):
            raise UserError(
                "stopping: floor and points lie in [0, 1], and points rise. See `gistgate"
                " fit-draft`."
            )

    def acceptance(self, confidence: float) -> float:
        """How often a token of this draft probability is accepted."""
        place = bisect_right([x for x, _ in self.points], confidence)
        if place in (0, len(self.points)):
            return self.points[0 if place == 0 else -1][1]
        (x0, y0), (x1, y1) = self.points[place - 1 : place + 1]
        return y0 + (y1 - y0) * (confidence - x0) / (x1 - x0)

    def length(self, confidences: Sequence[float]) -> int:
        """Tokens of a draft with these probabilities, at least one where there is one."""
        estimate = 1.0
        for place, confidence in enumerate(confidences):
            estimate = self.after(estimate, confidence)
            if estimate < self.floor:
                return place + 1
        return len(confidences)

    def after(self, estimate: float, confidence: float) -> float:
        """The estimate with one more token."""
        return self.acceptance(confidence) * (estimate if self.joint else 1.0)

    @property
    def binding(self) -> dict[str, Any]:
        """What decides proposals, as plain JSON."""
        return {
            "floor": self.floor,
            "joint": self.joint,
            "points": [list(point) for point in self.points],
        }

    def save(self, path: str | Path) -> None:
        """Write the policy as JSON."""
        write_json(path, asdict(self))


class Drafts:
    """The drafts of one round: which rows still draft, and how long each draft is."""

    def __init__(self, stopping: Stopping, batch: int) -> None:
        self.stopping = stopping
        self.estimates = [1.0] * batch
        self.lengths = [0] * batch

    def add(self, z_BV: Tensor, x_B: Tensor) -> bool:
        """Take in processed draft logits and the tokens drawn from them; True once every row has
        ended its draft.
        """
        confidences = (
            (z_BV.gather(-1, x_B[:, None]).squeeze(-1) - z_BV.logsumexp(-1)).double().exp().tolist()
        )
        for row, confidence in enumerate(confidences):
            if self.estimates[row] >= self.stopping.floor:  # it still drafts
                self.lengths[row] += 1
                self.estimates[row] = self.stopping.after(self.estimates[row], confidence)
        return max(self.estimates) < self.stopping.floor

    def valid(self, like: Tensor) -> Tensor:
        """Which tokens are proposed, in the shape [B, K] of `like`."""
        lengths = torch.tensor(self.lengths, device=like.device)
        return torch.arange(like.shape[1], device=like.device) < lengths[:, None]


def stopping_from(said: Any) -> Stopping:
    """A policy from what a user says: a number, which is a confidence threshold as in transformers,
    or a file.
    """
    try:
        threshold = float(said)
    except (TypeError, ValueError):
        value = read_json(said)
        with refusing(
            f"{said} says nothing about when drafts end", "Write it with `gistgate fit-draft`."
        ):
            points = tuple((float(x), float(y)) for x, y in value["points"])
            return dataclass_from(
                Stopping, {**value, "points": points, "floor": float(value["floor"])}
            )
    if not 0 <= threshold <= 1:
        raise UserError(
            f"No draft ends at {said}. Give a probability, or a file that `gistgate fit-draft`"
            " wrote."
        )
    return Stopping(threshold, joint=False)
