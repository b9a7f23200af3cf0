"""A draft model that proposes one segment, and remembers the states it wrote it from.

Axis letters: B rows, K drafted tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Sampling
from gistgate.decoding.reader import left_padded
from gistgate.decoding.states import tap
from gistgate.drafters.base import Draft
from gistgate.drafters.model import ModelDrafter
from gistgate.rules.base import draw
from gistgate.segments.boundaries import Boundaries


class SegmentDrafter(ModelDrafter):
    """Drafts every row up to the end of its segment, K tokens at most."""

    def __init__(self, model: PreTrainedModel, boundaries: Boundaries) -> None:
        self.boundaries = boundaries
        self.lengths: list[int] = []
        """Tokens of each row's finished segment; 0 where the limit came first: that is no segment."""
        self.states = torch.zeros(0)
        """The draft model's last states that predicted x_1 .. x_K [B, K, D]."""
        super().__init__(model)

    def propose(
        self,
        texts: Sequence[Sequence[int]],
        num_draft: int,
        *,
        vocabulary: int,
        sampling: Sampling,
        uniforms: Tensor | None,
        want_q: bool,
    ) -> Draft:
        ids, valid = left_padded(self.reader.unread(texts), self.model.device)
        chains: list[list[int]] = [[] for _ in texts]
        self.lengths = [0] * len(texts)
        tokens, rows, states = [], [], []
        with tap(self.model, ["post"]) as seen:
            for step in range(num_draft):
                z_BV = sampling.logits(self.reader.read(ids, valid, keep=1)[:, -1, :vocabulary])
                x_B = z_BV.argmax(-1)
                if not sampling.greedy or want_q:
                    rows.append(z_BV.softmax(-1))
                    if not sampling.greedy:
                        assert uniforms is not None
                        x_B = draw(rows[-1], uniforms[:, step].to(x_B.device))
                tokens.append(x_B)
                states.append(seen["post"][:, -1])
                ids, valid = x_B[:, None], None
                if self._extend(chains, x_B.tolist()):
                    break
        self._drafted = len(tokens)
        self.states = torch.stack(states, dim=1)
        draft_ids = torch.stack(tokens, dim=1)
        written = torch.tensor([len(chain) for chain in chains], device=draft_ids.device)
        inside = torch.arange(len(tokens), device=draft_ids.device) < written[:, None]
        return Draft(draft_ids, inside, torch.stack(rows, dim=1) if rows else None, forwards=len(tokens))

    def _extend(self, chains: list[list[int]], tokens: list[int]) -> bool:
        """Append to the rows that still write; True once all have ended their segment."""
        for row, token in enumerate(tokens):
            if self.lengths[row]:
                continue
            chains[row].append(token)
            if self.boundaries.ends(chains[row]):
                self.lengths[row] = len(chains[row])
        return all(self.lengths)
