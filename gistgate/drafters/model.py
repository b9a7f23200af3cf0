"""A small language model as drafter: K forwards of its own for every forward of the target."""

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Draft, draw
from gistgate.core.cache import RowCache
from gistgate.core.drafter import Drafter, Request, Texts
from gistgate.core.reader import Reader, left_padded, remembered
from gistgate.drafters.stopping import Drafts, Stopping


class ModelDrafter(Drafter):
    """Proposes what a draft model with the target's vocabulary would write."""

    gives_q = True
    asks_room = True

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, stopping: Stopping | None = None) -> None:
        """Draft with `model`, up to K tokens or as far as `stopping` finds that it pays."""
        self.model = model
        self.stopping = stopping
        self._drafts: Drafts | None = None
        self.start(1)

    @property
    def binding(self) -> dict[str, Any]:
        return {} if self.stopping is None else {"stopping": self.stopping.binding}

    def start(self, batch: int) -> None:
        self.reader = Reader(self.model, batch)
        self._drafted = 0

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        device = self.model.device
        sampling = request["sampling"]
        uniforms = request["uniforms"]
        ids, valid = left_padded(self.reader.unread(texts), device)
        tokens = []
        probs = []
        self._drafts = None if self.stopping is None else Drafts(self.stopping, len(texts))
        for step in range(num_draft):
            z_BV = self.reader.read(ids, valid, keep=1)[:, -1, : request["vocabulary"]]
            z_BV = sampling.logits(z_BV)
            x_B = z_BV.argmax(-1)
            if not sampling.greedy or request["want_q"]:
                q_BV = z_BV.softmax(-1)
                probs.append(q_BV)
                if not sampling.greedy:
                    assert uniforms is not None
                    x_B = draw(q_BV, uniforms[:, step].to(device))
            tokens.append(x_B)
            ids = x_B[:, None]
            valid = None
            if self._enough(x_B, z_BV):
                break
        self._drafted = len(tokens)
        x_BK = torch.stack(tokens, dim=1)
        q_BKV = torch.stack(probs, dim=1) if probs else None
        if self._drafts is None:
            valid_BK = torch.ones_like(x_BK, dtype=torch.bool)
        else:
            valid_BK = self._drafts.valid(x_BK)
        return Draft(x_BK, valid_BK, q_BKV, forwards=len(tokens))

    def _enough(self, drawn: Tensor, z_BV: Tensor) -> bool:
        """Whether drafting ends with these tokens [B], drawn from processed logits, before
        `num_draft`.
        """
        return self._drafts is not None and self._drafts.add(z_BV, drawn)

    def keep(self, accepted: Sequence[int]) -> None:
        # The last drafted token was never read, so at most drafted - 1 of them are in the cache.
        in_cache = self._drafted - 1
        if in_cache > 0:
            self.reader.keep(in_cache, [min(num, in_cache) for num in accepted])

    def select(self, rows: Sequence[int]) -> None:
        self.reader.select(rows)

    def admit(self, texts: Texts, caches: Sequence[RowCache]) -> None:
        self.reader.admit(texts, caches)

    def read(self, texts: Texts) -> list[RowCache]:
        return remembered(self.model, texts)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        return self.reader.snapshot(rows)
