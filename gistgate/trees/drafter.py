"""Drafts of a model as trees, grown level by level.

Axis letters: B rows, W nodes read at a time, b successors of each, R nodes read so far, M
    candidates, N nodes of the tree, V vocabulary.
"""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from gistgate.core.block import Draft, draw
from gistgate.core.drafter import Request, Texts
from gistgate.core.reader import left_padded
from gistgate.drafters.model import ModelDrafter
from gistgate.trees.tree import Trees, tree_layout


class Growth:
    """A tree that grows level by level.

    Candidates are numbered in the order they come, read nodes in the order they are read, from 0
    after the text.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        empty = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.ids = empty  # token of each candidate [B, M]
        self.source = empty  # which read node it follows [B, M]; -1: the text
        self.score = empty.double()  # ln q of its path [B, M]
        self.read = empty  # which candidate each read node is [B, R]
        self.read_parents = empty  # which read node each read node follows [B, R]; -1: the text
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

    def add(self, q_BWV: Tensor, tokens_BWb: Tensor) -> None:
        """Add successors of the nodes just read (at first: the text), and what these say about
        them.
        """
        self._q.append(q_BWV)
        score_BWb = q_BWV.gather(-1, tokens_BWb).double().log()
        if self.num_read:
            above_BW = self.read[:, -tokens_BWb.shape[1] :]
            score_BWb = score_BWb + self.score.gather(1, above_BW)[..., None]
        self._level = self.size
        source_BWb = self._frontier[..., None].expand_as(tokens_BWb)
        self.ids = appended(self.ids, tokens_BWb)
        self.source = appended(self.source, source_BWb)
        self.score = appended(self.score, score_BWb)

    def advance(self, width: int) -> Tensor:
        """Choose the most probable of the candidates just added to be read next; their tokens [B,
        W].
        """
        fresh = self.score[:, self._level :]
        width = min(width, fresh.shape[1])
        best = fresh.topk(width, dim=-1).indices.sort(-1).values + self._level
        numbers = self.num_read + torch.arange(width, device=best.device)
        self._frontier = numbers.expand(len(best), -1)
        self.read = appended(self.read, best)
        self.read_parents = appended(self.read_parents, self.source.gather(1, best))
        return self.ids.gather(1, best)

    def draft(self, num_nodes: int, forwards: int, with_q: bool) -> Draft:
        """The most probable candidates as a tree; a path never loses its beginning, which is at
        least as probable.
        """
        order = self.score.sort(dim=-1, descending=True, stable=True).indices
        self._chosen = chosen = order[:, :num_nodes].sort(-1).values
        source = self.source.gather(1, chosen)
        parents = torch.full_like(source, -1)
        if self.num_read:
            nodes = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
            node_of = torch.full_like(self.ids, -1).scatter(1, chosen, nodes)
            above = node_of.gather(1, self.read.gather(1, source.clamp_min(0)))
            parents = torch.where(source >= 0, above, -1)
        q = None
        if with_q:
            rows = torch.arange(len(source), device=source.device)
            q = torch.cat(self._q, dim=1)[rows[:, None], source + 1]
        ids = self.ids.gather(1, chosen)
        return Draft(ids, torch.ones_like(ids, dtype=torch.bool), q, forwards, parents)

    def read_of(self, paths: Texts) -> list[list[int]]:
        """Paths in numbers of the draft's nodes -> in numbers of read nodes, as far as they were
        read.
        """
        read_paths = []
        rows = zip(paths, self._chosen.tolist(), self.read.tolist())
        for path, chosen, read in rows:
            number = {candidate: place for place, candidate in enumerate(read)}
            candidates = [chosen[node] for node in path]
            read_paths.append([number[place] for place in candidates if place in number])
        return read_paths


def appended(columns: Tensor, more: Tensor) -> Tensor:
    """What is known of candidates or read nodes [B, X], with more of them [B, ..] behind."""
    return torch.cat([columns, more.flatten(1)], dim=1)


class TreeDrafter(ModelDrafter):
    """A small language model that drafts trees: where it is unsure it proposes several tokens
    (arXiv 2406.16858).

    Greedy requests keep the `nodes` most probable candidates of all levels. Sampled ones draw
    `chains` independent continuations: nothing is left out because of what was drawn, so that
    lossless rules stay lossless.
    """

    form = Trees
    asks_room = False

    nodes = 16
    width = 4  # nodes of a greedy request's level that get successors
    branch = 3  # successors of each
    chains = 2

    def start(self, batch: int) -> None:
        super().start(batch)
        self._growth: Growth | None = None

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        vocabulary = request["vocabulary"]
        sampling = request["sampling"]
        uniforms = request["uniforms"]
        device = self.model.device
        ids, valid = left_padded(self.reader.unread(texts), device)
        z = self.reader.read(ids, valid, keep=1)
        growth = Growth(len(texts), device)
        for level in range(1, num_draft + 1):
            q_BWV = sampling.logits(z[..., :vocabulary]).softmax(-1)
            if sampling.greedy:
                tokens = q_BWV.topk(min(self.branch, vocabulary), dim=-1).indices
            else:
                assert uniforms is not None
                tokens = self._drawn(q_BWV, growth.size, uniforms.to(device))
            growth.add(q_BWV, tokens)
            is_full = not sampling.greedy and self.nodes - growth.size < self.chains
            if level == num_draft or is_full:
                break
            fresh = growth.advance(self.width if sampling.greedy else self.chains)
            z = self.reader.read(fresh, None, fresh.shape[1], tree_layout(growth.read_parents))
        self._growth = growth
        with_q = request["want_q"] or not sampling.greedy
        return growth.draft(self.nodes, forwards=level, with_q=with_q)

    def _drawn(self, q_BWV: Tensor, used: int, uniforms: Tensor) -> Tensor:
        """The first token of every chain [B, 1, chains], then the next one of each [B, chains,
        1].
        """
        width = q_BWV.shape[1]
        branch = 1 if used else self.chains
        u = uniforms[:, used : used + width * branch].view(-1, width, branch)
        return draw(q_BWV[:, :, None].expand(-1, -1, branch, -1), u)

    def keep(self, accepted: Sequence[int]) -> None:
        """Take back what was read of a tree that turned out a chain, but its first `accepted[b]`
        nodes.
        """
        self.keep_paths([list(range(num)) for num in accepted])

    def keep_paths(self, paths: Texts) -> None:
        """Keep what was read of the accepted nodes."""
        if self._growth is not None and self._growth.num_read:
            self.reader.keep_paths(self._growth.num_read, self._growth.read_of(paths))
        self._growth = None
