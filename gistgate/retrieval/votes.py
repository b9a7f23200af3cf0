"""Candidates vote on what comes next: a chain along the heaviest branch of their trie, or its heaviest nodes.

Axis letters: H candidates, K tokens of each.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

END = -1
"""Stands where a candidate is over; what lies behind it means nothing."""


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
    ids: list[int] = []
    least, followers_H = min_share * float(votes.weights.sum()), np.arange(len(votes.weights))
    for step in range(votes.ids.shape[1]):
        tokens, weights, which_H, followers_H = tally(votes, followers_H, step)
        if not len(tokens) or weights.max() < least:
            break
        best = int(weights.argmax())
        ids.append(int(tokens[best]))
        followers_H = followers_H[which_H == best]
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
    ids: list[int] = []
    parents: list[int] = []
    least, ties = min_share * float(votes.weights.sum()), count()
    heap: list[tuple[float, int, int, int, int, np.ndarray]] = []

    def grow(node: int, depth: int, followers_H: np.ndarray) -> None:
        tokens, weights, which_H, followers_H = tally(votes, followers_H, depth)
        for place in np.flatnonzero(weights >= least).tolist():
            followers = followers_H[which_H == place]
            heappush(heap, (-float(weights[place]), next(ties), int(tokens[place]), node, depth + 1, followers))

    grow(-1, 0, np.arange(len(votes.weights)))
    while heap and len(ids) < nodes:
        _, _, token, parent, depth, followers = heappop(heap)
        ids.append(token)
        parents.append(parent)
        if depth < votes.ids.shape[1]:
            grow(len(ids) - 1, depth, followers)
    return ids, parents


def tally(votes: Votes, followers_H: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The different tokens of these candidates at a step, what each weighs, who has which, and who is not over yet."""
    next_H = votes.ids[followers_H, step]
    alive_H = next_H != END
    followers_H = followers_H[alive_H]
    tokens, which_H = np.unique(next_H[alive_H], return_inverse=True)
    return tokens, np.bincount(which_H, votes.weights[followers_H], len(tokens)), which_H, followers_H
