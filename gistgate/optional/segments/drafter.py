"""A draft model that proposes one segment, and remembers the states it wrote it from.

Axis letters: B rows, K drafted tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Draft
from gistgate.drafters.model import ModelDrafter
from gistgate.forward.states import tap
from gistgate.optional.segments.boundaries import Boundaries


class SegmentDrafter(ModelDrafter):
    """Drafts every row up to the end of its segment, K tokens at most."""

    stops_early = True

    def __init__(self, model: PreTrainedModel, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.texts: Sequence[Sequence[int]] = []
        """What each row's segment follows."""
        self.lengths: list[int] = []
        """Tokens of each row's finished segment; 0 where the limit came first: that is no segment."""
        self.states = torch.zeros(0)
        """The draft model's last states that predicted x_1 .. x_K [B, K, D]."""
        self._chains: list[list[int]] = []
        self._seen: dict[str, Tensor] = {}
        self._states: list[Tensor] = []
        super().__init__(model)

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **request: Any) -> Draft:
        self.texts, self.lengths = texts, [0] * len(texts)
        self._chains, self._states = [[] for _ in texts], []
        with tap(self.model, ["post"]) as self._seen:
            draft = super().propose(texts, num_draft, **request)
        self.states = torch.stack(self._states, dim=1)
        written = torch.tensor([len(chain) for chain in self._chains], device=draft.ids.device)
        return replace(draft, valid=torch.arange(draft.ids.shape[1], device=draft.ids.device) < written[:, None])

    def _enough(self, drawn: Tensor, z_BV: Tensor) -> bool:
        """Append to the rows that still write; True once all have ended their segment."""
        self._states.append(self._seen["post"][:, -1])
        for row, token in enumerate(drawn.tolist()):
            if self.lengths[row]:
                continue
            self._chains[row].append(token)
            if self.boundaries.ends(self._chains[row]):
                self.lengths[row] = len(self._chains[row])
        return all(self.lengths)
