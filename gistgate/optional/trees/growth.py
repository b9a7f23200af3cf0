"""A tree on its way: candidates of all levels, which of them were read, and what becomes the draft.

Axis letters: B rows, W nodes read at a time, R nodes read so far, M candidates, N nodes of the tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gistgate.block import Draft


class Growth:
    """Candidates are numbered in the order they come; read nodes in the order they are read, from 0 after the text."""

    def __init__(self, batch: int, device: torch.device) -> None:
        empty = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.ids = empty
        """Token of each candidate [B, M]."""
        self.source = empty
        """Which read node it follows [B, M]; -1: the text."""
        self.score = empty.double()
        """ln q of its path [B, M]."""
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
        score = above[..., None] + self._q[-1].gather(-1, tokens).double().log()
        self._level = self.size
        self.ids = torch.cat([self.ids, tokens.flatten(1)], dim=1)
        self.score = torch.cat([self.score, score.flatten(1)], dim=1)
        self.source = torch.cat([self.source, self._frontier.repeat_interleave(branch, 1)], dim=1)

    def advance(self, width: int) -> Tensor:
        """Choose the most probable of the candidates just added to be read next; their tokens [B, W]."""
        fresh = self.score[:, self._level :]
        best = fresh.topk(min(width, fresh.shape[1]), dim=-1).indices.sort(-1).values + self._level
        self._frontier = (self.num_read + torch.arange(best.shape[1], device=best.device)).expand(len(best), -1)
        self.read = torch.cat([self.read, best], dim=1)
        self.read_parents = torch.cat([self.read_parents, self.source.gather(1, best)], dim=1)
        return self.ids.gather(1, best)

    def draft(self, num_nodes: int, forwards: int, with_q: bool) -> Draft:
        """The most probable candidates as a tree; a path never loses its beginning, which is at least as probable."""
        order = self.score.sort(dim=-1, descending=True, stable=True).indices[:, :num_nodes]
        self._chosen = chosen = order.sort(-1).values
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
        return Draft(ids, torch.ones_like(ids, dtype=torch.bool), q, forwards, parents)

    def read_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Paths in numbers of the draft's nodes -> in numbers of read nodes, as far as they were read."""
        chosen, read = self._chosen.tolist(), self.read.tolist()
        found = []
        for path, nodes, known in zip(paths, chosen, read, strict=True):
            number = {candidate: place for place, candidate in enumerate(known)}
            steps = [number.get(nodes[node]) for node in path]
            found.append([step for step in steps if step is not None])
        return found
