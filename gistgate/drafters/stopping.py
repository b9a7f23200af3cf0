"""When a draft ends: behind the first token that is too unlikely to survive for what it costs
(after SpecDec++, arXiv 2405.19715).

Sampled requests stay lossless because a token that was drawn is always proposed, also the one that
ends the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gistgate.core.block import of_tokens
from gistgate.core.files import read_json, write_json
from gistgate.core.utils import Share, dataclass_from, refusing

# The draft's probability taken for the probability that a token is accepted.
IDENTITY = ((0.0, 0.0), (1.0, 1.0))


@dataclass(frozen=True)
class Stopping:
    """A policy. It depends on texts and models alone, never on a clock."""

    floor: Share  # estimated survival of a whole draft below which it ends
    # (probability of a token, share that is accepted), linear between the points and rising.
    points: tuple[tuple[Share, Share], ...] = IDENTITY
    # What it was made for: rule, settings, K, costs and counts.
    measured: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        confidences, shares = map(list, zip(*self.points))
        if confidences != sorted({*confidences}) or shares != sorted(shares):
            raise ValueError("the points do not rise")

    def acceptance(self, confidence: Any) -> Any:
        """How often tokens of these draft probabilities are accepted: a number, or an array."""
        confidences, shares = zip(*self.points)
        return np.interp(confidence, confidences, shares)

    def after(self, survival: Any, confidence: Any) -> Any:
        """The survival of drafts with one more token of this probability."""
        return survival * self.acceptance(confidence)

    def length(self, confidences: Sequence[float]) -> int:
        """Tokens of a draft with these probabilities, at least one where there is one."""
        survival = 1.0
        for place, confidence in enumerate(confidences):
            survival = self.after(survival, confidence)
            if survival < self.floor:
                return place + 1
        return len(confidences)

    @property
    def binding(self) -> dict[str, Any]:
        """What decides proposals, as plain JSON; `joint` says that the survival is of all tokens so
        far.
        """
        points = [list(point) for point in self.points]
        return {"floor": self.floor, "joint": True, "points": points}

    def save(self, path: str | Path) -> None:
        """Write the policy as JSON."""
        write_json(path, {**self.binding, "measured": self.measured})


class Drafts:
    """The drafts of one round: which rows still draft, and how long each draft is."""

    def __init__(self, stopping: Stopping, batch: int) -> None:
        self.stopping = stopping
        self.survival = np.ones(batch)
        self.lengths = torch.zeros(batch, dtype=torch.long)

    def add(self, z_BV: Tensor, x_B: Tensor) -> bool:
        """Take in processed draft logits and the tokens drawn from them; True once every row has
        ended its draft.
        """
        confidence_B = (of_tokens(z_BV, x_B) - z_BV.logsumexp(-1)).double().exp().cpu().numpy()
        drafts_B = self.survival >= self.stopping.floor
        self.lengths += torch.from_numpy(drafts_B)
        survival = self.stopping.after(self.survival, confidence_B)
        self.survival = np.where(drafts_B, survival, self.survival)
        return bool(self.survival.max() < self.stopping.floor)

    def valid(self, x_BK: Tensor) -> Tensor:
        """Which of these tokens are proposed [B, K]."""
        places_K = torch.arange(x_BK.shape[1], device=x_BK.device)
        return places_K < self.lengths.to(x_BK.device)[:, None]


def stopping_from(path: str | Path) -> Stopping:
    """The policy in a file of `gistgate fit-draft`; UserError where it holds none."""
    value = read_json(str(path))
    with refusing(
        f"{path} says nothing about when drafts end", "Write it with `gistgate fit-draft`."
    ):
        points = tuple((float(confidence), float(share)) for confidence, share in value["points"])
        value = {**value, "points": points, "floor": float(value["floor"])}
        value.pop("joint", None)
        return dataclass_from(Stopping, value)
