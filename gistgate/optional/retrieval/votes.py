"""Candidates vote on what comes next: a chain along the heaviest branch of their trie, or its heaviest nodes.

Axis letters: H candidates, K tokens of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

END = -1
"""Stands behind every text that is stored, so that none goes on with another; what lies behind it means nothing."""


class Votes(NamedTuple):
    """Candidates and what they weigh."""

    ids: np.ndarray
    """Their tokens [H, K]."""
    weights: np.ndarray
    """Positive numbers [H]."""

    def scaled(self, total: float) -> Votes:
        """The same candidates, weighing `total` together."""
        return Votes(self.ids, self.weights * (total / self.weights.sum()))

    def beside(self, other: Votes) -> Votes:
        """All candidates of both."""
        return Votes(np.concatenate([self.ids, other.ids]), np.concatenate([self.weights, other.weights]))


def chain(votes: Votes, min_share: float) -> list[int]:
    """The heaviest next token again and again, as long as `min_share` of all votes stay; of equals the smaller id."""
    rows, weights = votes.ids.tolist(), votes.weights.tolist()  # a few dozen rows: quicker than arrays
    ids: list[int] = []
    least, followers = min_share * sum(weights), list(range(len(rows)))
    for step in range(votes.ids.shape[1]):
        totals: dict[int, float] = {}
        for row in followers:
            totals[rows[row][step]] = totals.get(rows[row][step], 0.0) + weights[row]
        totals.pop(END, None)
        best = min(totals, key=lambda token: (-totals[token], token), default=END)
        if best == END or totals[best] < least:
            break
        ids.append(best)
        followers = [row for row in followers if rows[row][step] == best]
    return ids


def trie(votes: Votes, nodes: int, min_share: float) -> tuple[list[int], list[int]]:
    """The heaviest nodes of the candidates' trie, parents before children.

    Args:
        votes: the candidates.
        nodes: most nodes.
        min_share: least share of all votes that a node has.

    Returns:
        Tokens of the nodes, and the number of each one's parent (-1: none).
    """
    rows, weights = votes.ids.tolist(), votes.weights.tolist()
    ids: list[int] = []
    parents: list[int] = []
    least, ties = min_share * sum(weights), count()
    heap: list[tuple[float, int, int, int, int, list[int]]] = []

    def grow(node: int, depth: int, followers: Sequence[int]) -> None:
        behind: dict[int, list[int]] = {}
        for row in followers:
            behind.setdefault(rows[row][depth], []).append(row)
        behind.pop(END, None)
        for token, its in sorted(behind.items()):
            weight = sum(weights[row] for row in its)
            if weight >= least:
                heappush(heap, (-weight, next(ties), token, node, depth + 1, its))

    grow(-1, 0, range(len(rows)))
    while heap and len(ids) < nodes:
        _, _, token, parent, depth, followers = heappop(heap)
        ids.append(token)
        parents.append(parent)
        if depth < votes.ids.shape[1]:
            grow(len(ids) - 1, depth, followers)
    return ids, parents
