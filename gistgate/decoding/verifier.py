"""The target's share of a round: it reads the draft behind each text and says what it would have written.

Axis letters: B rows, K drafted tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gistgate.block import Block, Draft, Sampling
from gistgate.decoding.parts import Parts
from gistgate.forward.cache import RowCache
from gistgate.forward.reader import Reader, left_padded
from gistgate.forward.states import tap
from gistgate.request.rows import Row, texts_of
from gistgate.request.stopping import Stop


class Verifier:
    """Reads a draft in one forward of the target."""

    def __init__(self, parts: Parts, sampling: Sampling, stop: Stop) -> None:
        self.parts, self.sampling = parts, sampling
        self.reader = Reader(parts.target, 0)
        self.ends = torch.tensor([*stop.eos_ids], dtype=torch.long, device=parts.target.device)
        self.protocol = torch.tensor([*stop.eos_ids, *parts.protocol_ids], device=parts.target.device)
        self.states: dict[str, Tensor] = {}

    @classmethod
    def extra_tokens(cls, parts: Parts) -> int:
        """Most tokens of context that are read beyond text and draft."""
        return 0

    def begin(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        """Begin a batch of texts, of which the first `lengths[b]` tokens are remembered in `caches[b]`."""
        self.reader = Reader(self.parts.target, len(caches))
        self.reader.restore(caches, lengths)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the hidden states that a block has to carry while the context is open."""
        with tap(self.parts.target, self.parts.layers) as self.states:
            yield

    def verify(self, rows: Sequence[Row], draft: Draft, uniforms: Tensor | None) -> Block:
        """The draft and what the target says about it; `uniforms [B, K + 1]` are for accepting it."""
        ids, valid = left_padded(self.reader.unread(texts_of(rows)), self.parts.target.device)
        num = draft.ids.shape[1]
        if valid is not None or not bool(draft.valid.all()):
            pending = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            valid = torch.cat([pending, draft.valid], dim=1)
        z = self.read(torch.cat([ids, draft.ids], dim=1), valid, draft, rows)
        return Block(
            draft.ids,
            draft.valid,
            self.sampling.logits(z),
            q=draft.q,
            hidden={layer: state[:, -num - 1 :] for layer, state in self.states.items()},
            uniforms=uniforms,
            greedy=self.sampling.greedy,
            protocol=self.protocol,
            ends=self.ends,
        )

    def read(self, ids: Tensor, valid: Tensor | None, draft: Draft, rows: Sequence[Row]) -> Tensor:
        """The target's rows for the draft [B, K + 1, V], which stands at the end of `ids [B, N]`."""
        layout = self.parts.form.layout(draft)
        return self.reader.read(ids, valid, draft.ids.shape[1] + 1, layout)[..., : self.parts.vocabulary]
