"""Drafters of trees: a draft model level by level, and prompt lookup over several earlier
occurrences.

Axis letters: B rows, W nodes read at a time, R nodes read so far, M candidates, N nodes of the
    tree, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Draft
from gistgate.core.drafter import Drafter, Request, Texts
from gistgate.core.reader import left_padded
from gistgate.core.rule import draw
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.drafters.text import occurrences, shared
from gistgate.trees.tree import Candidate, Trees, merge, tree_layout


class Growth:
    """Candidates are numbered in the order they come; read nodes in the order they are read, from 0
    after the text.
    """

    def __init__(self, batch: int, device: torch.device, stopping: Stopping | None = None) -> None:
        self.stopping = stopping
        empty = torch.zeros(batch, 0, dtype=torch.long, device=device)
        self.ids = empty  # token of each candidate [B, M]
        self.source = empty  # which read node it follows [B, M]; -1: the text
        self.score = empty.double()  # ln q of its path [B, M]
        self.survival = (
            empty.double()
        )  # estimated survival of each candidate [B, M], where `stopping` ends drafts
        self.open = (
            empty.bool()
        )  # whether each candidate has survivors enough to be followed [B, M]
        self.proposed = empty.bool()  # whether what each candidate follows is open [B, M]
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

    def add(self, q_BWV: Tensor, tokens: Tensor) -> None:
        """Successors `[B, W, branch]` of the nodes just read (at first: the text), and what these
        say about them.
        """
        self._q.append(q_BWV)
        batch, width, branch = tokens.shape
        follows = torch.ones(batch, width, dtype=torch.bool, device=tokens.device)
        estimate = follows.double()
        above = follows.double().log()
        if self.num_read:
            last = self.read[:, -width:]
            above, follows, estimate = (
                one.gather(1, last) for one in (self.score, self.open, self.survival)
            )
        q_BWb = q_BWV.gather(-1, tokens).double()
        score = above[..., None] + q_BWb.log()
        proposed = follows.repeat_interleave(branch, 1)
        survival = estimate.repeat_interleave(branch, 1)
        lives = proposed
        if self.stopping is not None:
            told = zip(survival.flatten().tolist(), q_BWb.flatten().tolist(), strict=True)
            survival = (
                torch.tensor([self.stopping.after(*one) for one in told])
                .to(survival)
                .view_as(survival)
            )
            lives = proposed & (survival >= self.stopping.floor)
        self._level = self.size
        self.ids = torch.cat([self.ids, tokens.flatten(1)], dim=1)
        self.score = torch.cat([self.score, score.flatten(1)], dim=1)
        self.source = torch.cat([self.source, self._frontier.repeat_interleave(branch, 1)], dim=1)
        self.survival = torch.cat([self.survival, survival], dim=1)
        self.open = torch.cat([self.open, lives], dim=1)
        self.proposed = torch.cat([self.proposed, proposed], dim=1)

    def ended(self) -> bool:
        """Whether no candidate of the last level is worth following, in any row."""
        return not bool(self.open[:, self._level :].any())

    def advance(self, width: int) -> Tensor:
        """Choose the most probable of the candidates just added to be read next; their tokens [B,
        W].
        """
        fresh = self.score.masked_fill(~self.open, -torch.inf)[:, self._level :]
        best = fresh.topk(min(width, fresh.shape[1]), dim=-1).indices.sort(-1).values + self._level
        self._frontier = (self.num_read + torch.arange(best.shape[1], device=best.device)).expand(
            len(best), -1
        )
        self.read = torch.cat([self.read, best], dim=1)
        self.read_parents = torch.cat([self.read_parents, self.source.gather(1, best)], dim=1)
        return self.ids.gather(1, best)

    def draft(self, num_nodes: int, forwards: int, with_q: bool) -> Draft:
        """The most probable candidates as a tree; a path never loses its beginning, which is at
        least as probable.
        """
        num_nodes = min(num_nodes, int(self.proposed.sum(-1).max()))
        score = self.score.masked_fill(~self.proposed, -torch.inf)
        order = score.sort(dim=-1, descending=True, stable=True).indices[:, :num_nodes]
        left_out = ~self.proposed.gather(
            1, order
        )  # of rows that propose fewer nodes: they stand behind all others
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
        """Paths in numbers of the draft's nodes -> in numbers of read nodes, as far as they were
        read.
        """
        chosen = self._chosen.tolist()
        read = self.read.tolist()
        found = []
        for path, nodes, known in zip(paths, chosen, read, strict=True):
            number = {candidate: place for place, candidate in enumerate(known)}
            steps = [number.get(nodes[node]) for node in path]
            found.append([step for step in steps if step is not None])
        return found


class TreeDrafter(ModelDrafter):
    """A small language model that drafts trees: where it is unsure it proposes several tokens
    (arXiv 2406.16858).

    Greedy requests keep the `nodes` most probable candidates of all levels. Sampled ones draw
    `chains` independent
    continuations: nothing is left out because of what was drawn, so that lossless rules stay
        lossless.
    """

    form = Trees
    asks_room = False

    def __init__(
        self,
        model: PreTrainedModel,
        nodes: int = 16,
        width: int = 4,
        branch: int = 3,
        chains: int = 2,
        stopping: Stopping | None = None,
    ) -> None:
        """`width` nodes of a greedy request's level get `branch` successors each; a path ends where
        `stopping` says.
        """
        if min(nodes, width, branch, chains) < 1:
            raise UserError(
                f"tree: {nodes} nodes, width {width}, branch {branch} and {chains} chains make no"
                " tree."
            )
        self.nodes = nodes
        self.width = width
        self.branch = branch
        self.chains = min(chains, nodes)
        super().__init__(model, stopping)

    def start(self, batch: int) -> None:
        super().start(batch)
        self._growth: Growth | None = None

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        vocabulary = request["vocabulary"]
        sampling = request["sampling"]
        uniforms = request["uniforms"]
        device = self.model.device
        ids, valid = left_padded(self.reader.unread(texts), device)
        z = self.reader.read(ids, valid, keep=1)[..., :vocabulary]
        growth = Growth(len(texts), device, self.stopping)
        forwards = 1
        for level in range(num_draft):
            q_BWV = sampling.logits(z).softmax(-1)
            if sampling.greedy:
                tokens = q_BWV.topk(min(self.branch, vocabulary), dim=-1).indices
            else:
                assert uniforms is not None
                tokens = self._drawn(q_BWV, growth.size, uniforms.to(device))
            growth.add(q_BWV, tokens)
            room = self.nodes - growth.size
            full = level == num_draft - 1 or (not sampling.greedy and room < self.chains)
            if full or (
                self.stopping is not None and growth.ended()
            ):  # without a policy no candidate is closed
                break
            fresh = growth.advance(self.width if sampling.greedy else self.chains)
            z = self.reader.read(fresh, None, fresh.shape[1], tree_layout(growth.read_parents))
            z = z[..., :vocabulary]
            forwards += 1
        self._growth = growth
        return growth.draft(self.nodes, forwards, with_q=request["want_q"] or not sampling.greedy)

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

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep what was read of the accepted nodes."""
        if self._growth is not None and (num := self._growth.num_read):
            self.reader.keep_paths(num, self._growth.read_of(paths))
        self._growth = None


@dataclass
class LookupTree(Drafter):
    """Longer matches come first, of equals the later occurrence; one candidate alone is a plain
    chain.
    """

    form = Trees
    n_max: int = 3  # longest n-gram looked for, in tokens
    candidates: int = 4  # most different continuations
    nodes: int = 24  # most nodes of the tree

    def __post_init__(self) -> None:
        if min(self.n_max, self.candidates, self.nodes) < 1:
            raise UserError("lookup-tree: n_max, candidates and nodes below 1 propose nothing.")

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        return merge(
            [self.found(text, num_draft, vocabulary) for text in texts], self.nodes, num_draft
        )

    def found(self, text: Sequence[int], num_draft: int, vocabulary: int) -> list[Candidate]:
        """The best continuations of at most `num_draft` tokens with their n-gram's length."""
        best: dict[tuple[int, ...], float] = {}
        for length, start in occurrences(text, self.n_max):
            best.setdefault(
                tuple(shared(text[start : start + num_draft], vocabulary)), float(length)
            )
            if len(best) == self.candidates:
                break
        return list(best.items())
