"""The states that predicted each segment, read by both models as the decoder will read them.

Axis letters: N segments, K tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.forward.reader import Reader, left_padded
from gistgate.forward.states import tap
from pipeline.studies.segments.collect import ROLES, shares


@dataclass(frozen=True)
class Examples:
    """Different segments of all prefixes, with how often each was drawn."""

    problem: Tensor
    """Number of the problem [N]."""
    states: Tensor
    """Last states that predict the segment [N, K, D]."""
    valid: Tensor
    """Tokens of the segment [N, K]."""
    share: Tensor
    """Semantic probability under the model [N]."""
    drawn: dict[str, Tensor]
    """How often each model drew it [N], by role."""

    def where(self, mask: Tensor) -> Examples:
        """Only these rows."""
        drawn = {role: count[mask] for role, count in self.drawn.items()}
        return Examples(self.problem[mask], self.states[mask], self.valid[mask], self.share[mask], drawn)


def examples_of(rows: Sequence[dict[str, Any]], model: PreTrainedModel, role: str, judge: str, limit: int) -> Examples:
    """What a model's states say about every different segment, labelled by `judge`.

    Prefixes behind which the model itself finished none are left out: they have no shares.
    """
    prefixes, segments, problems, labels = [], [], [], []
    drawn: dict[str, list[int]] = {name: [] for name in ROLES}
    for row in rows:
        if role not in row["roles"]:
            continue
        own = shares(row, judge, role)
        known = {tuple(ids): share for ids, share in zip(row["segments"], own, strict=True)}
        writers = [(tuple(ids), who) for ids, who in zip(row["segments"], row["roles"], strict=True)]
        for ids, share in known.items():
            prefixes.append([*row["prompt"], *row["answer"]])
            segments.append(list(ids))
            problems.append(row["problem"])
            labels.append(share)
            for name in ROLES:
                drawn[name].append(writers.count((ids, name)))
    states, valid = read_states(model, prefixes, segments, limit)
    counts = {name: torch.tensor(count) for name, count in drawn.items()}
    return Examples(torch.tensor(problems), states, valid, torch.tensor(labels), counts)


@torch.no_grad()  # not inference mode: probes are trained on these
def read_states(
    model: PreTrainedModel, prefixes: Sequence[list[int]], segments: Sequence[list[int]], limit: int, batch: int = 64
) -> tuple[Tensor, Tensor]:
    """States [N, limit, D] that predict the tokens of each segment, and where there is one [N, limit]."""
    width = model.config.get_text_config().hidden_size
    states = torch.zeros(len(segments), limit, width)
    lengths = torch.tensor([len(segment) for segment in segments])
    for start in range(0, len(segments), batch):
        places = range(start, min(start + batch, len(segments)))
        texts = [[*prefixes[n], *segments[n][:-1]] for n in places]  # the last token predicts what follows
        keep = max(len(segments[n]) for n in places)
        with tap(model, ["post"]) as seen:
            Reader(model, len(texts)).read(*left_padded(texts, model.device), keep=keep)
        for row, n in enumerate(places):
            size = len(segments[n])
            states[n, :size] = seen["post"][row, -size:].float().cpu()
    return states, torch.arange(limit) < lengths[:, None]
