"""Sampled trees without loss: from the nodes to one path, and the distribution of the token behind it.

Axis letters: B rows, N nodes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError

Passing = Callable[[int, float], bool]
"""Whether node n passes a test that it has to pass with a probability."""


@dataclass(frozen=True)
class Nodes:
    """One tree and what both models say about it."""

    ids: list[int]
    """Token of each node [N]."""
    children: dict[int, list[int]]
    """The nodes behind each node, first to be tried first; -1 is the text."""
    p: Tensor
    """The target behind the text and behind each node [N + 1, V], float64."""
    q: Tensor | None
    """What each node was drawn from [N, V]; None: it was certain."""

    def drawn_from(self, node: int) -> Tensor:
        """The distribution [V] that `node` is a draw of, float64."""
        if self.q is None:
            return torch.zeros_like(self.p[0]).index_fill(0, torch.tensor(self.ids[node], device=self.p.device), 1.0)
        return self.q[node].double()


Walk = Callable[[Nodes, Passing], tuple[list[int], Tensor]]
"""Finds the accepted path (node numbers) and the weights [V] of the own token behind it."""


def nodes_of(block: Block, parents: Tensor) -> list[Nodes]:
    """The trees of a block of nodes."""
    p = block.logprobs.double().exp()
    found = []
    for row, (ids, above, valid) in enumerate(
        zip(block.draft_ids.tolist(), parents.tolist(), block.valid.tolist(), strict=True)
    ):
        children: dict[int, list[int]] = {}
        for node in (node for node, known in enumerate(valid) if known):
            children.setdefault(above[node], []).append(node)
        found.append(Nodes(ids, children, p[row], None if block.q is None else block.q[row]))
    return found


def passing_with(uniforms: Sequence[float]) -> Passing:
    """Tests decided by one number in (0, 1) for every node."""
    return lambda node, probability: uniforms[node] <= probability


def token_wise(nodes: Nodes, passes: Passing) -> tuple[list[int], Tensor]:
    """Down the tree, sibling after sibling, each refusal leaving the next one its residual (arXiv 2305.09781)."""
    path: list[int] = []
    here = -1
    while True:
        p = nodes.p[here + 1]
        for node in nodes.children.get(here, []):
            q, x = nodes.drawn_from(node), nodes.ids[node]
            if p[x] > 0 and passes(node, float(p[x]) / max(float(q[x]), 1e-300)):
                break
            p = normalised(p - q, p)
        else:
            return path, p
        path.append(node)
        here = node


def traverse(nodes: Nodes, passes: Passing) -> tuple[list[int], Tensor]:
    """Leaves first: a path is judged as a whole, and what it is refused goes to its parent (arXiv 2505.12398)."""
    found = below(nodes, passes, -1, 1.0)
    assert found is not None
    return found


def below(nodes: Nodes, passes: Passing, here: int, ratio: float) -> tuple[list[int], Tensor] | None:
    """The first accepted path at or behind `here`, whose own path ratio is P; None where nothing passes."""
    p = nodes.p[here + 1]
    for node in nodes.children.get(here, []):
        q, x = nodes.drawn_from(node), nodes.ids[node]
        reached = ratio * float(p[x])
        behind = min(1.0, reached / max(float(q[x]), 1e-300)) if reached > 0 else 0.0
        found = below(nodes, passes, node, behind) if behind > 0 else None
        if found is not None:
            return [node, *found[0]], found[1]
        rest = (ratio * p - q).clamp_min(0)
        mass = float(rest.sum())
        p = rest / mass if mass > 0 else p
        # 0 / 0 means P = 1 and p = q: nothing that was refused is left to give
        whole = mass + (1 - ratio)
        ratio = mass / whole if whole > 0 else 1.0
    return ([], p) if here < 0 or passes(here, ratio) else None


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """norm([w]_+), or another distribution where nothing is left."""
    rest = weights.clamp_min(0)
    mass = rest.sum()
    return rest / mass if mass > 0 else otherwise


WALKS: dict[str, Walk] = {"exact": token_wise, "traversal": traverse}
"""The rules that leave sampled trees without loss, by id."""


def walk_of(rule: Any) -> Walk:
    """How a rule walks sampled trees.

    Raises:
        UserError: it does not.
    """
    if rule.id not in WALKS:
        raise UserError(
            f"The rule '{rule.id}' samples along chains only, and this drafter returns trees. Use 'exact' or "
            "'traversal', temperature 0, or a drafter of chains such as 'model'."
        )
    return WALKS[rule.id]
