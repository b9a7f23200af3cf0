"""Suffix decoding (arXiv 2411.04975): propose what most often followed the latest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

from gistgate.core.block import Draft
from gistgate.core.drafter import Request, Texts
from gistgate.drafters.text import RowDrafter, ragged

DEPTH = 32  # longest run of tokens that is counted, match and proposal together
# Path probability (product of child count / node count) below which a proposal ends.
MIN_PROBABILITY = 0.1

NOTHING: dict[int, Node] = {}
"""The children of every leaf; nobody adds to them."""


class Node:
    """One run of tokens, from the root to here."""

    __slots__ = ("children", "count", "leaf")

    def __init__(self, leaf: int | None = None) -> None:
        self.count = 1  # times that the run occurs, at the end of the text too
        # The place of the next token, where the run occurred once and has no nodes of its own from
        # here on; None at an inner node.
        self.leaf = leaf
        self.children: dict[int, Node] = {} if leaf is None else NOTHING


class Place(NamedTuple):
    """Where a run of tokens ends in the tree."""

    node: Node
    ahead: int = 0  # tokens beyond the node, along the text
    length: int = 0  # tokens of the run


class Match(NamedTuple):
    """A path behind a place."""

    score: float  # sum of the path probabilities
    ids: list[int]


class SuffixTree:
    """All suffixes of a text that grows at its end, cut to `depth` tokens, with counts."""

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self.root = Node()
        self.ids: list[int] = []
        # (length, node) of the suffixes that occurred before and may grow.
        self.open: list[tuple[int, Node]] = []

    def append(self, token: int) -> None:
        """Let the text go on with `token`."""
        self.ids.append(token)
        growing = [(0, self.root), *self.open]
        self.open = []
        for length, node in growing:
            child = node.children.get(token)
            if child is None:
                node.children[token] = Node(len(self.ids))
                continue
            child.count += 1
            grows = length + 1 < self.depth
            if child.leaf is not None:
                self._split(child, child.leaf, grows)
            if grows:
                self.open.append((length + 1, child))

    def _split(self, node: Node, leaf: int, grows: bool) -> None:
        """Make a leaf an inner node; the suffix that was alone there is a leaf one token
        further.
        """
        node.leaf = None
        node.children = {self.ids[leaf]: Node(leaf + 1)} if grows else {}

    def find(self, run: Sequence[int]) -> Place:
        """Where a run that occurs ends."""
        node = self.root
        for index, token in enumerate(run):
            if node.leaf is not None:
                return Place(node, len(run) - index, len(run))
            node = node.children[token]
        return Place(node, 0, len(run))

    def follow(self, place: Place) -> dict[int, int]:
        """What comes next at a place, and how often; empty at the end of the text and at the depth
        of the tree.
        """
        if place.length >= self.depth:
            return {}
        if place.node.leaf is None:
            return {token: child.count for token, child in place.node.children.items()}
        start = place.node.leaf + place.ahead
        return dict.fromkeys(self.ids[start : start + 1], 1)

    def step(self, place: Place, token: int) -> Place:
        """One of the tokens of `follow` further."""
        if place.node.leaf is None:
            return Place(place.node.children[token], 0, place.length + 1)
        return Place(place.node, place.ahead + 1, place.length + 1)

    def walk(self, place: Place, num: int, vocabulary: int) -> Match:
        """The path of up to `num` most frequent tokens of the vocabulary behind a place."""
        ids: list[int] = []
        path = 1.0
        score = 0.0
        while len(ids) < num:
            total = place.node.count
            # A count on the edge stays, however it is rounded.
            least = MIN_PROBABILITY * total / path - 1e-9
            counts = {
                token: count
                for token, count in self.follow(place).items()
                if count >= least and token < vocabulary
            }
            if not counts:
                break
            token = max(counts, key=counts.__getitem__)
            path *= counts[token] / total
            score += path
            ids.append(token)
            place = self.step(place, token)
        return Match(score, ids)

    def best(self, num: int, vocabulary: int) -> Match:
        """Of the paths behind all ends of the text the one with the best score, of equals that of
        the longer end; a match of l tokens is followed for at most l tokens.
        """
        best = Match(0.0, [])
        for length in range(min(len(self.ids), self.depth - 1), 0, -1):
            longest = min(num, length)
            if best.score >= longest:
                break  # no path probability exceeds 1, and shorter matches may propose no more
            match = self.walk(self.find(self.ids[-length:]), longest, vocabulary)
            if match.score > best.score:
                best = match
        return best


class SuffixDrafter(RowDrafter):
    """For every match length walk the most frequent continuation; the path with the best score
    wins.

    Only accepted tokens are counted.
    """

    new_row = SuffixTree

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        self.rows = [
            self._read(tree, text) for tree, text in zip(self.rows_of(texts), texts, strict=True)
        ]
        return ragged([tree.best(num_draft, request["vocabulary"]).ids for tree in self.rows])

    def _read(self, tree: SuffixTree, text: Sequence[int]) -> SuffixTree:
        """The tree with the tokens that are new; a text that does not continue the last one is
        counted anew.
        """
        if list(text[: len(tree.ids)]) != tree.ids:
            tree = SuffixTree()
        for token in text[len(tree.ids) :]:
            tree.append(token)
        return tree
