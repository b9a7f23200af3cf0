"""Suffix decoding (arXiv 2411.04975): propose what most often followed the latest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Unpack

from gistgate.core.block import Draft
from gistgate.core.drafter import Request, Texts
from gistgate.core.utils import UserError
from gistgate.drafters.text import RowDrafter, ragged


@dataclass(slots=True, eq=False)
class Text:
    """One text in a tree."""

    ids: list[int] = field(default_factory=list)
    open: list[tuple[int, Node]] = field(
        default_factory=list
    )  # (length, node) of suffixes that others begin like


NOTHING: dict[int, Node] = {}  # the children of every leaf; nobody adds to them


class Node:
    """One run of tokens, from the root to here."""

    __slots__ = ("children", "count", "place", "text")

    def __init__(self, text: Text | None = None, place: int = 0) -> None:
        self.count = 1  # times that the run occurs, at the ends of texts too
        self.text = text  # text and place of the next token of a suffix that is alone from here on
        self.place = place
        self.children: dict[int, Node] = NOTHING if text is not None else {}


class Place(NamedTuple):
    """Where a run of tokens ends in the tree."""

    node: Node
    ahead: int = 0  # tokens beyond the node, along its text
    length: int = 0  # tokens of the run


class SuffixTree:
    """All suffixes of some texts, cut to `depth` tokens, with counts; texts grow at their ends."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Node()

    def append(self, text: Text, token: int) -> None:
        """`text` goes on with `token`."""
        text.ids.append(token)
        entering = [(0, self.root), *text.open]
        text.open = []
        for length, node in entering:
            child = node.children.get(token)
            if child is None:
                node.children[token] = Node(text, len(text.ids))
                continue
            child.count += 1
            length += 1
            if (
                first := child.text
            ) is not None:  # a leaf: the suffix that was alone here is stored a token further
                child.text = None
                child.children = {}
                if length < self.depth and child.place < len(first.ids):
                    child.children[first.ids[child.place]] = Node(first, child.place + 1)
                elif length < self.depth:
                    first.open.append((length, child))
            if length < self.depth:
                text.open.append((length, child))

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
        """What comes next at a place, and how often; empty at the ends of texts and at the depth of
        the tree.
        """
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
        self, place: Place, num: int, min_probability: float, vocabulary: int
    ) -> tuple[list[int], float]:
        """Up to `num` most frequent tokens of the vocabulary behind a place, and the summed path
        probabilities.
        """
        ids: list[int] = []
        path = 1.0
        score = 0.0
        while len(ids) < num:
            total = place.node.count
            least = (
                min_probability * total / path - 1e-9
            )  # a count on the edge stays, however it is rounded
            counts = {
                token: n
                for token, n in self.follow(place).items()
                if n >= least and token < vocabulary
            }
            if not counts:
                break
            token = max(counts, key=counts.__getitem__)
            path *= counts[token] / total
            score += path
            ids.append(token)
            place = self.step(place, token)
        return ids, score


class Match(NamedTuple):
    """The best of all match lengths."""

    score: float  # sum of the path probabilities
    ids: list[int]


@dataclass
class RowTexts:
    """What is known of one row."""

    tree: SuffixTree
    own: Text = field(default_factory=Text)  # the whole text


@dataclass
class SuffixDrafter(RowDrafter):
    """For every match length walk the most frequent continuation; the path with the best score
    wins.

    Only accepted tokens are counted. A match of l tokens is followed for at most `factor` * l +
    `offset` tokens.
    """

    factor: float = 1.0  # tokens proposed for every matched one
    offset: float = 0.0  # tokens proposed besides
    min_probability: float = (
        0.1  # path probability (product of child count / node count) below which a proposal ends
    )
    depth: int = 32  # longest run of tokens that is counted, match and proposal together

    def __post_init__(self) -> None:
        grows = self.factor >= 0 and self.offset >= 0 and self.factor + self.offset >= 1
        if not (grows and 0 <= self.min_probability <= 1 and self.depth >= 2):
            raise UserError(
                "suffix: factor + offset is 1 or more, min_probability in [0, 1], depth 2 or more."
            )

    def new_row(self) -> RowTexts:
        return RowTexts(SuffixTree(self.depth))

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        rows = self.rows = self.rows_of(texts)
        chains: list[list[int]] = []
        for index, text in enumerate(texts):
            row = rows[index] = self._read(rows[index], text)
            match = self.best(row, text, num_draft, request["vocabulary"])
            chains.append([] if match is None else match.ids)
        return ragged(chains)

    def _read(self, row: RowTexts, text: Sequence[int]) -> RowTexts:
        """Count the tokens that are new; a text that is not the continuation of the last one is
        counted anew.
        """
        if list(text[: len(row.own.ids)]) != row.own.ids:
            row = self.new_row()
        for token in text[len(row.own.ids) :]:
            row.tree.append(row.own, token)
        return row

    def best(
        self, row: RowTexts, text: Sequence[int], num_draft: int, vocabulary: int
    ) -> Match | None:
        """The match whose path scores best, of equals the longer; None without any."""
        best: Match | None = None
        for length in range(min(len(text), self.depth - 1), 0, -1):
            most = self.longest(length, num_draft)
            if most < 1 or (best is not None and best.score >= most):
                break  # no path probability exceeds 1, and shorter matches may propose no more
            place = row.tree.find(text[-length:])
            if place is None:
                continue
            ids, score = row.tree.walk(place, most, self.min_probability, vocabulary)
            if ids and (best is None or score > best.score):
                best = Match(score, ids)
        return best

    def longest(self, length: int, num_draft: int) -> int:
        """Tokens that a match of `length` tokens may propose."""
        return int(min(num_draft, self.factor * length + self.offset + 1e-6))
