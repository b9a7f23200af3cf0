"""A suffix tree with counts over texts that grow at their ends and can be taken out again (arXiv 2411.04975).

It says for every run of up to `depth` tokens how often it occurs, and what follows it how often. The end of a suffix
that nobody shares is not stored but read off its text, so a tree takes a few nodes for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

Pick = Callable[[dict[int, int], int], int]
"""Chooses the next token from {token: times it follows} and the times that anything or nothing follows."""


class Text:
    """One text in a tree."""

    __slots__ = ("ids", "open")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.open: list[tuple[int, Node]] = []
        """Its last suffixes as far as others begin alike: (length, node), to go on from when it grows."""


NOTHING: dict[int, Node] = {}
"""The children of every leaf; nobody adds to them."""


class Node:
    """One run of tokens, from the root to here."""

    __slots__ = ("children", "count", "place", "text")

    def __init__(self, text: Text | None = None, place: int = 0) -> None:
        self.count = 1
        """Times that the run occurs, at the ends of texts too."""
        self.text, self.place = text, place
        """Where a suffix that is alone from here on continues: its text and the place of the next token."""
        self.children: dict[int, Node] = NOTHING if text is not None else {}


class Place(NamedTuple):
    """Where a run of tokens ends in the tree."""

    node: Node
    ahead: int = 0
    """Tokens beyond the node, along its text."""
    length: int = 0
    """Tokens of the run."""


class SuffixTree:
    """All suffixes of some texts, cut to `depth` tokens."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Node()

    def append(self, text: Text, token: int) -> None:
        """`text` goes on with `token`."""
        text.ids.append(token)
        entering, text.open = [(0, self.root), *text.open], []
        for length, node in entering:
            child = node.children.get(token)
            if child is None:
                node.children[token] = Node(text, len(text.ids))
                continue
            child.count += 1
            self._share(child, length + 1)
            if length + 1 < self.depth:
                text.open.append((length + 1, child))

    def _share(self, leaf: Node, length: int) -> None:
        """A second suffix arrives at what may be a leaf: the first one is stored a token further."""
        text = leaf.text
        if text is not None:
            leaf.text, leaf.children = None, {}
            if length >= self.depth:
                return
            if leaf.place < len(text.ids):
                leaf.children[text.ids[leaf.place]] = Node(text, leaf.place + 1)
            else:
                text.open.append((length, leaf))

    def remove(self, text: Text) -> None:
        """Take a text out; it is empty afterwards and may grow again."""
        for start in range(len(text.ids)):
            node = self.root
            for token in text.ids[start : start + self.depth]:
                child = node.children[token]
                child.count -= 1
                if not child.count:  # what hangs below is this suffix's alone
                    del node.children[token]
                    break
                node = child
        text.ids, text.open = [], []

    def find(self, run: Sequence[int]) -> Place | None:
        """Where `run` ends; None when it does not occur."""
        node = self.root
        for index, token in enumerate(run):
            child = node.children.get(token)
            if child is None:
                return None
            if child.text is not None:
                rest = list(run[index + 1 :])
                found = child.text.ids[child.place : child.place + len(rest)] == rest
                return Place(child, len(rest), len(run)) if found else None
            node = child
        return Place(node, 0, len(run))

    def follow(self, place: Place) -> dict[int, int]:
        """What comes next at a place, and how often; empty at the ends of texts and at the depth of the tree."""
        if place.length >= self.depth:
            return {}
        if place.node.text is None:
            return {token: child.count for token, child in place.node.children.items()}
        start = place.node.place + place.ahead
        return dict.fromkeys(place.node.text.ids[start : start + 1], 1)

    def step(self, place: Place, token: int) -> Place:
        """One of the tokens of `follow` further."""
        if place.node.text is None:
            return Place(place.node.children[token], 0, place.length + 1)
        return Place(place.node, place.ahead + 1, place.length + 1)

    def walk(
        self, place: Place, num: int, min_probability: float, vocabulary: int, pick: Pick | None = None
    ) -> tuple[list[int], float]:
        """Up to `num` tokens behind a place, and the sum of their path probabilities.

        The path probability is the product of child count / node count; tokens that take it below `min_probability`,
        and those outside the vocabulary, are no choice. The most frequent one is taken, of equals the one seen first.
        """
        ids: list[int] = []
        path, score = 1.0, 0.0
        while len(ids) < num:
            total = place.node.count
            least = min_probability * total / path - 1e-9  # a count on the edge stays, however it is rounded
            counts = {token: n for token, n in self.follow(place).items() if n >= least and token < vocabulary}
            if not counts:
                break
            token = max(counts, key=counts.__getitem__) if pick is None else pick(counts, total)
            path *= counts[token] / total
            score += path
            ids.append(token)
            place = self.step(place, token)
        return ids, score
