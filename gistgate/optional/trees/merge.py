"""Several candidate continuations as one tree: those that begin alike share their beginning (arXiv 2606.00021).

Axis letters: B rows, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gistgate.block import Draft
from gistgate.drafters.chains import right_padded

Candidate = tuple[Sequence[int], float]
"""Tokens that may follow, and how good they are held to be; higher is better."""


def merge(candidates: Sequence[Sequence[Candidate]], num_nodes: int, depth: int, forwards: int = 0) -> Draft:
    """One tree for every row's candidates.

    Args:
        candidates: for each row any number of (tokens, score), in any order; of equal scores the earlier comes first.
        num_nodes: most nodes per row; what the best candidates leave goes to the next, whose ends may be cut.
        depth: most tokens of a candidate that count.
        forwards: forwards of a draft model that they took.

    Returns:
        A draft whose nodes stand in the order of their candidates, parents before children. Where no row branches it
        is a plain chain, without `parents`.
    """
    tries = [loose_trie(sorted(row, key=lambda one: -one[1]), num_nodes, depth) for row in candidates]
    return tree([ids for ids, _ in tries], [parents for _, parents in tries], forwards)


def loose_trie(ordered: Sequence[Candidate], num_nodes: int, depth: int) -> tuple[list[int], list[int]]:
    """Tokens of the nodes, and the number of each one's parent (-1: none)."""
    ids: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    for tokens, _ in ordered:
        node = -1
        for token in tokens[:depth]:
            step = (node, int(token))
            if step not in children:
                if len(ids) == num_nodes:
                    break
                children[step] = len(ids)
                ids.append(step[1])
                parents.append(node)
            node = children[step]
    return ids, parents


def tree(ids: Sequence[Sequence[int]], parents: Sequence[Sequence[int]], forwards: int = 0) -> Draft:
    """Trees of unequal size as a draft, N as many nodes as the largest; a chain where no row branches."""
    widest = max((len(row) for row in ids), default=0)
    branches = any(parent != node - 1 for row in parents for node, parent in enumerate(row))
    lengths = torch.tensor([len(row) for row in ids], dtype=torch.long)
    valid = torch.arange(widest) < lengths[:, None]
    return Draft(
        right_padded(ids, widest), valid, None, forwards, right_padded(parents, widest, -1) if branches else None
    )
