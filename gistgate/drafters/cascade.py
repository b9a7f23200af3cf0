"""A draft model that is itself drafted for in greedy requests: FLy's multi-level acceleration
(arXiv 2511.22972).

Axis letters: B rows, K drafted tokens, k tokens of the inner drafter, V vocabulary.
"""

from collections.abc import Sequence
from typing import Unpack

import torch
from transformers import PreTrainedModel

from gistgate.core.block import Draft, Sampling
from gistgate.core.drafter import Drafter, Request, Texts
from gistgate.core.reader import RowCache, left_padded
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup


class CascadeDrafter(ModelDrafter):
    """Proposes exactly what the draft model alone would, in fewer of its forwards where `inner`
    guesses well.
    """

    def __init__(
        self, model: PreTrainedModel, inner: Drafter | None = None, inner_block: int = 4
    ) -> None:
        """`inner`, by default prompt lookup, proposes up to `inner_block` tokens per forward of
        `model`.
        """
        inner = PromptLookup() if inner is None else inner
        if inner_block < 1 or inner.model is not None or inner.learns or inner.nodes:
            raise UserError(
                "cascade: inner_block is 1 or more, and the inner drafter reads own texts alone."
            )
        self.inner = inner
        self.inner_block = inner_block
        super().__init__(model)

    def start(self, batch: int) -> None:
        super().start(batch)
        self.inner.start(batch)
        self._levels: list[int] | None = None

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.inner.select(rows)

    def admit(
        self, present: int, texts: Texts, caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        super().admit(present, texts, caches, lengths)
        self.inner.admit(present, texts, [RowCache([]) for _ in texts], [0] * len(texts))

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        vocabulary = request["vocabulary"]
        sampling = request["sampling"]
        if not sampling.greedy or request["want_q"]:
            self._levels = None
            return super().propose(texts, num_draft, **request)
        self._levels = [len(text) for text in texts]
        grown = [list(text) for text in texts]
        forwards = 0
        while any(len(g) - len(text) < num_draft for g, text in zip(grown, texts, strict=True)):
            self._grow(grown, [len(text) + num_draft for text in texts], vocabulary, sampling)
            forwards += 1
        ids = torch.tensor([g[-num_draft:] for g in grown], device=self.model.device)
        return Draft(ids, torch.ones_like(ids, dtype=torch.bool), None, forwards)

    def _grow(
        self, grown: list[list[int]], goals: list[int], vocabulary: int, sampling: Sampling
    ) -> None:
        """One forward of the draft model: every unfinished row gains what it accepts and its own
        next token.
        """
        device = self.model.device
        left = torch.tensor([goal - len(g) for g, goal in zip(grown, goals, strict=True)])
        guess = self.inner.propose(
            grown,
            self.inner_block,
            vocabulary=vocabulary,
            sampling=sampling,
            uniforms=None,
            want_q=False,
        )
        num = guess.ids.shape[1]
        fits_Bk = guess.valid.cpu() & (torch.arange(num) < (left - 1)[:, None])
        pending = [
            list(one) or g[-1:] for one, g in zip(self.reader.unread(grown), grown, strict=True)
        ]
        ids, valid = left_padded(pending, device)
        known = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        known = known & (left > 0).to(device)[:, None]
        both = torch.cat([known, fits_Bk.to(device)], dim=1)
        read = self.reader.read(
            torch.cat([ids, guess.ids.to(device)], dim=1),
            None if bool(both.all()) else both,
            keep=num + 1,
        )
        top = read[..., :vocabulary].argmax(-1).cpu()
        stays_B = ((guess.ids.cpu() == top[:, :-1]) & fits_Bk).long().cumprod(-1).sum(-1)
        lengths = stays_B.tolist()
        if num:
            self.reader.keep(num, lengths, fits_Bk.sum(-1).tolist())
        self.inner.keep(lengths)
        for g, goal, guessed, length, own in zip(
            grown, goals, guess.ids.tolist(), lengths, top.tolist(), strict=True
        ):
            if len(g) < goal:
                g.extend([*guessed[:length], own[length]])

    def keep(self, accepted: Sequence[int]) -> None:
        if self._levels is None:
            super().keep(accepted)
            return
        # Holes between accepted inner guesses leave no common tail to drop, but for a single row
        # there are none.
        known = self.reader.known
        keep = [
            min(now, level + num)
            for now, level, num in zip(known, self._levels, accepted, strict=True)
        ]
        if len(keep) == 1:
            self.reader.forget(known[0] - keep[0], [known[0] - keep[0]])
        elif keep != known:
            self.reader.restore(self.reader.snapshot(range(len(keep))), keep)
