"""Where a traced graph repeats itself: the layers of a model are the same operations on other weights."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten

LIKE = "like"
"""Key of a node's `meta`: size, strides, dtype and device of its tensor, or None."""
FEWEST_TIMES, FEWEST_NODES = 3, 8
"""What repeats less often, or is shorter, is not worth a program of its own."""


def parts_of(graph: fx.Graph) -> list[list[fx.Node]]:
    """The graph's operations in order as what comes before, the repeated part again and again, and what comes after.

    An empty list where nothing repeats. The first and the last part may be empty.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    start, length, times = repetition(numbered([signature(node) for node in nodes]))
    if times < FEWEST_TIMES:
        return []
    slack = len(nodes) - start - length * times
    shift = best_cut(nodes, start, length)
    times -= shift > slack
    start += shift
    ends = [start + length * turn for turn in range(times + 1)]
    repeated = [nodes[low:high] for low, high in pairwise(ends)]
    first = interface(repeated[0])
    same = [interface(part) == first for part in repeated]
    return [nodes[:start], *repeated, nodes[ends[-1] :]] if times >= FEWEST_TIMES and all(same) else []


def numbered(signatures: Sequence[Hashable]) -> Tensor:
    """The same number for the same signature [N]."""
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(one, len(known)) for one in signatures])


def repetition(numbers: Tensor) -> tuple[int, int, int]:
    """(start, length, times) of the repetition in [N] that covers most; of several the one with the shortest length."""
    best, covered = (0, 0, 0), 0
    for length in range(FEWEST_NODES, len(numbers) // FEWEST_TIMES + 1):
        differs = (numbers[:-length] != numbers[length:]).nonzero().flatten()
        edges = torch.cat([torch.tensor([-1]), differs, torch.tensor([len(numbers) - length])])
        runs = edges.diff() - 1
        place = int(runs.argmax())
        times = (int(runs[place]) + length) // length
        if times >= FEWEST_TIMES and times * length > covered:
            best, covered = (int(edges[place]) + 1, length, times), times * length
    return best


def signature(node: fx.Node) -> Hashable:
    """What an operation does, without the tensors that it does it to."""
    leaves, structure = tree_flatten((node.args, node.kwargs))
    values = tuple("tensor" if isinstance(leaf, fx.Node) else repr(leaf) for leaf in leaves)
    return str(node.target), str(structure), values, node.meta.get(LIKE)


def read_by(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments, in their order, as often as they stand there."""
    return [leaf for leaf in tree_flatten((node.args, node.kwargs))[0] if isinstance(leaf, fx.Node)]


def best_cut(nodes: Sequence[fx.Node], start: int, length: int) -> int:
    """How far to move the beginning, so that the least goes from one repetition to the next."""
    order = {node: place for place, node in enumerate(nodes)}

    def crossing(shift: int) -> float:
        cut = start + length + shift
        found = [
            node
            for node in nodes[start + shift : cut]
            if any(order.get(user, len(nodes)) >= cut for user in node.users)
        ]
        return len(found) if all(node.meta.get(LIKE) for node in found) else float("inf")

    return min(range(length), key=crossing)


def interface(part: Sequence[fx.Node]) -> Hashable:
    """How the operations of a part hang together, and what kind of tensors come from outside."""
    inside, outside = {node: place for place, node in enumerate(part)}, dict[fx.Node, int]()

    def named(read: fx.Node) -> tuple[bool, int]:
        return (True, inside[read]) if read in inside else (False, outside.setdefault(read, len(outside)))

    links = tuple(named(read) for node in part for read in read_by(node))
    return links, tuple(node.meta.get(LIKE) for node in outside)
