"""SENSE's retrieval as a tree: the heaviest nodes of all candidates, not one chain (arXiv 2606.00021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gistgate.block import Draft, Sampling
from gistgate.errors import UserError
from gistgate.optional.retrieval.sen import SenDrafter
from gistgate.optional.retrieval.votes import trie
from gistgate.optional.trees.merge import tree


@dataclass
class SenTree(SenDrafter):
    """Greedy requests, and sampled ones by the rules that walk trees of different siblings."""

    form = "tree"
    nodes: int = 16
    """Most nodes of a tree."""
    min_share: float = 0.02
    """Least share of the votes that a node has."""
    n_min: int = 4
    """Shortest occurrence beside a state: shorter ones say less, and a tree has room for many."""
    fill: int = 32
    """Candidates, states included."""
    priority: float = 0.1
    """What an occurrence of the text is worth, in cosines."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UserError(f"sen-tree: {self.nodes} nodes make no tree. Use 1 or more.")
        super().__post_init__()

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
        grown = [
            ([], []) if votes is None else trie(votes, self.nodes, self.min_share)
            for votes in self.candidates(texts, num_draft, vocabulary)
        ]
        return replace(tree([ids for ids, _ in grown], [parents for _, parents in grown]), notes=self.notes)
