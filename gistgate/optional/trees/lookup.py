"""Prompt lookup that copies what followed several earlier occurrences, merged into one tree.

After prompt lookup (apoorvumang/prompt-lookup-decoding) and the tries of SENSE (arXiv 2606.00021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gistgate.block import Draft, Sampling
from gistgate.drafters.base import Drafter
from gistgate.drafters.chains import occurrences, shared
from gistgate.errors import UserError
from gistgate.optional.trees.merge import Candidate, merge


@dataclass
class LookupTree(Drafter):
    """Longer matches come first, of equals the later occurrence; one candidate alone is a plain chain."""

    form = "tree"
    n_max: int = 3
    """Longest n-gram looked for, in tokens."""
    candidates: int = 4
    """Most different continuations."""
    nodes: int = 24
    """Most nodes of the tree."""

    def __post_init__(self) -> None:
        if min(self.n_max, self.candidates, self.nodes) < 1:
            raise UserError(
                f"lookup-tree: n_max {self.n_max}, candidates {self.candidates} and nodes {self.nodes} propose nothing."
                " Each has to be at least 1."
            )

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
        return merge([self.found(text, num_draft, vocabulary) for text in texts], self.nodes, num_draft)

    def found(self, text: Sequence[int], num_draft: int, vocabulary: int) -> list[Candidate]:
        """The best continuations of at most `num_draft` tokens with their n-gram's length."""
        best: dict[tuple[int, ...], float] = {}
        for length, start in occurrences(text, self.n_max):
            best.setdefault(tuple(shared(text[start : start + num_draft], vocabulary)), float(length))
            if len(best) == self.candidates:
                break
        return list(best.items())
