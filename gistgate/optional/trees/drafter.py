"""A small language model that drafts trees: where it is unsure it proposes several tokens (arXiv 2406.16858).

Axis letters: B rows, W nodes read at a time, M candidates, N nodes of the tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Draft, Sampling
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.forward.reader import left_padded
from gistgate.optional.trees.growth import Growth
from gistgate.optional.trees.masks import tree_layout
from gistgate.rules.base import draw

if TYPE_CHECKING:
    from gistgate.drafters.stopping import Stopping


class TreeDrafter(ModelDrafter):
    """Level by level, the most probable nodes are read in one forward, and each gets its most probable successors.

    Greedy requests keep the `nodes` most probable candidates of all levels. Sampled ones draw `chains` independent
    continuations, each nodes / chains tokens long: nothing is left out because of what was drawn, so that lossless
    rules stay lossless.
    """

    form = "tree"
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
        """A drafter around a draft model with the target's vocabulary.

        Args:
            model: the draft model.
            nodes: N, most nodes of a tree.
            width: nodes of a level that get successors, of greedy requests.
            branch: successors of each of them.
            chains: continuations of sampled requests.
            stopping: when a path ends; None: at K tokens or `nodes` nodes.

        Raises:
            UserError: one of them is less than 1.
        """
        if min(nodes, width, branch, chains) < 1:
            raise UserError(
                f"tree: {nodes} nodes, width {width}, branch {branch} and {chains} chains make no tree. "
                "Each has to be at least 1."
            )
        self.nodes, self.width, self.branch, self.chains = nodes, width, branch, min(chains, nodes)
        super().__init__(model, stopping)

    def start(self, batch: int) -> None:
        super().start(batch)
        self._growth: Growth | None = None

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
        device = self.model.device
        ids, valid = left_padded(self.reader.unread(texts), device)
        z = self.reader.read(ids, valid, keep=1)[..., :vocabulary]
        growth = Growth(len(texts), device, self.stopping)
        forwards = 1
        for level in range(num_draft):
            q_BWV = sampling.logits(z).softmax(-1)
            growth.keep(q_BWV)
            if sampling.greedy:
                tokens = q_BWV.topk(min(self.branch, vocabulary), dim=-1).indices
            else:
                assert uniforms is not None
                tokens = self._drawn(q_BWV, growth.size, uniforms.to(device))
            growth.add(tokens)
            room = self.nodes - growth.size
            full = level == num_draft - 1 or (not sampling.greedy and room < self.chains)
            if full or (self.stopping is not None and growth.ended()):  # without a policy no candidate is closed
                break
            fresh = growth.advance(self.width if sampling.greedy else self.chains)
            z = self.reader.read(fresh, None, fresh.shape[1], tree_layout(growth.read_parents))
            z = z[..., :vocabulary]
            forwards += 1
        self._growth = growth
        return growth.draft(self.nodes, forwards, with_q=want_q or not sampling.greedy)

    def _drawn(self, q_BWV: Tensor, used: int, uniforms: Tensor) -> Tensor:
        """The first token of every chain [B, 1, chains], then the next one of each [B, chains, 1]."""
        width, branch = q_BWV.shape[1], 1 if used else self.chains
        u = uniforms[:, used : used + width * branch].view(-1, width, branch)
        return draw(q_BWV[:, :, None].expand(-1, -1, branch, -1), u)

    def keep(self, accepted: Sequence[int]) -> None:
        """Take back what was read of a tree that turned out a chain, but its first `accepted[b]` nodes."""
        self.keep_paths([list(range(num)) for num in accepted])

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep what was read of the accepted nodes."""
        if self._growth is not None and (num := self._growth.num_read):
            self.reader.keep_paths(num, self._growth.read_of(paths))
        self._growth = None
