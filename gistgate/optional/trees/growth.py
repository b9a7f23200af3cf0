"""A tree on its way: candidates of all levels, which of them were read, and what becomes the draft.

Axis letters: B rows, W nodes read at a time, R nodes read so far, M candidates, N nodes of the tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gistgate.block import Draft

if TYPE_CHECKING:
    from gistgate.drafters.stopping import Stopping


class Growth:
    """Candidates are numbered in the order they come; read nodes in the order they are read, from 0 after the text."""

    def __init__(self, batch: int, device: torch.device, stopping: Stopping | None = None) -> None:
        self.stopping = stopping
        empty = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.ids = empty
        """Token of each candidate [B, M]."""
        self.source = empty
        """Which read node it follows [B, M]; -1: the text."""
        self.score = empty.double()
        """ln q of its path [B, M]."""
        self.survival = empty.double()
        """Estimated survival of each candidate [B, M], where `stopping` ends drafts."""
        self.open = empty.bool()
        """Whether each candidate has survivors enough to be followed [B, M]."""
        self.proposed = empty.bool()
        """Whether what each candidate follows is open [B, M]: the token that ends a path is proposed as well."""
        self.read = empty
        """Which candidate each read node is [B, R]."""
        self.read_parents = empty
        """Which read node each read node follows [B, R]; -1: the text."""
        self._q: list[Tensor] = []
        self._level = 0
        self._frontier = empty.new_full((batch, 1), -1)
        self._chosen = empty

    @property
    def size(self) -> int:
        """M, candidates so far."""
        return self.ids.shape[1]

    @property
    def num_read(self) -> int:
        """R, candidates that were read."""
        return self.read.shape[1]

    def keep(self, q_BWV: Tensor) -> None:
        """Remember what the nodes just read (at first: the text) say about the next token."""
        self._q.append(q_BWV)

    def add(self, tokens: Tensor) -> None:
        """Successors `[B, W, branch]` of the nodes just read."""
        batch, width, branch = tokens.shape
        above = torch.zeros(batch, 1, dtype=torch.float64, device=tokens.device)
        if self.num_read:
            above = self.score.gather(1, self.read[:, -width:])
        q_BWb = self._q[-1].gather(-1, tokens).double()
        score = above[..., None] + q_BWb.log()
        self._end(q_BWb)
        self._level = self.size
        self.ids = torch.cat([self.ids, tokens.flatten(1)], dim=1)
        self.score = torch.cat([self.score, score.flatten(1)], dim=1)
        self.source = torch.cat([self.source, self._frontier.repeat_interleave(branch, 1)], dim=1)

    def _end(self, q_BWb: Tensor) -> None:
        """Note which of the successors with these probabilities are proposed, and which are followed."""
        batch, width, branch = q_BWb.shape
        follows = torch.ones(batch, width, dtype=torch.bool, device=q_BWb.device)
        estimate = follows.double()
        if self.num_read:
            last = self.read[:, -width:]
            follows, estimate = self.open.gather(1, last), self.survival.gather(1, last)
        proposed = follows.repeat_interleave(branch, 1)
        survival, lives = estimate.repeat_interleave(branch, 1), proposed
        if self.stopping is not None:
            told = zip(survival.flatten().tolist(), q_BWb.flatten().tolist(), strict=True)
            survival = torch.tensor([self.stopping.after(*one) for one in told]).to(survival).view_as(survival)
            lives = proposed & (survival >= self.stopping.floor)
        self.survival = torch.cat([self.survival, survival], dim=1)
        self.open = torch.cat([self.open, lives], dim=1)
        self.proposed = torch.cat([self.proposed, proposed], dim=1)

    def ended(self) -> bool:
        """Whether no candidate of the last level is worth following, in any row."""
        return not bool(self.open[:, self._level :].any())

    def advance(self, width: int) -> Tensor:
        """Choose the most probable of the candidates just added to be read next; their tokens [B, W]."""
        fresh = self.score.masked_fill(~self.open, -torch.inf)[:, self._level :]
        best = fresh.topk(min(width, fresh.shape[1]), dim=-1).indices.sort(-1).values + self._level
        self._frontier = (self.num_read + torch.arange(best.shape[1], device=best.device)).expand(len(best), -1)
        self.read = torch.cat([self.read, best], dim=1)
        self.read_parents = torch.cat([self.read_parents, self.source.gather(1, best)], dim=1)
        return self.ids.gather(1, best)

    def draft(self, num_nodes: int, forwards: int, with_q: bool) -> Draft:
        """The most probable candidates as a tree; a path never loses its beginning, which is at least as probable."""
        num_nodes = min(num_nodes, int(self.proposed.sum(-1).max()))
        score = self.score.masked_fill(~self.proposed, -torch.inf)
        order = score.sort(dim=-1, descending=True, stable=True).indices[:, :num_nodes]
        left_out = ~self.proposed.gather(1, order)  # of rows that propose fewer nodes: they stand behind all others
        self._chosen = chosen = (order + self.size * left_out).sort(-1).values % self.size
        source = self.source.gather(1, chosen)
        place = torch.full_like(self.ids, -1).scatter(
            1, chosen, torch.arange(chosen.shape[1]).to(chosen).expand_as(chosen)
        )
        parents = torch.full_like(source, -1)
        if self.num_read:
            above = place.gather(1, self.read.gather(1, source.clamp_min(0)))
            parents = torch.where(source >= 0, above, -1)
        q = torch.cat(self._q, dim=1) if with_q else None
        if q is not None:
            q = q.gather(1, (source + 1)[..., None].expand(-1, -1, q.shape[-1]))
        ids = self.ids.gather(1, chosen)
        return Draft(ids, self.proposed.gather(1, chosen), q, forwards, parents)

    def read_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Paths in numbers of the draft's nodes -> in numbers of read nodes, as far as they were read."""
        chosen, read = self._chosen.tolist(), self.read.tolist()
        found = []
        for path, nodes, known in zip(paths, chosen, read, strict=True):
            number = {candidate: place for place, candidate in enumerate(known)}
            steps = [number.get(nodes[node]) for node in path]
            found.append([step for step in steps if step is not None])
        return found
