"""Suffix decoding (arXiv 2411.04975): propose what most often followed the latest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, NamedTuple, Unpack

from gistgate.core.block import Draft
from gistgate.core.drafter import Request, Texts
from gistgate.core.utils import UserError
from gistgate.drafters.text import RowDrafter, ragged


@dataclass(slots=True, eq=False)
class Text:
    """One text in a tree."""

    ids: list[int] = field(default_factory=list)
    open: list[tuple[int, Node]] = field(default_factory=list)  # (length, node) of suffixes that others begin like


NOTHING: dict[int, Node] = {}  # the children of every leaf; nobody adds to them


class Node:
    """One run of tokens, from the root to here."""

    __slots__ = ("children", "count", "place", "text")

    def __init__(self, text: Text | None = None, place: int = 0) -> None:
        self.count = 1  # times that the run occurs, at the ends of texts too
        self.text, self.place = text, place  # text and place of the next token of a suffix that is alone from here on
        self.children: dict[int, Node] = NOTHING if text is not None else {}


class Place(NamedTuple):
    """Where a run of tokens ends in the tree."""

    node: Node
    ahead: int = 0  # tokens beyond the node, along its text
    length: int = 0  # tokens of the run


class SuffixTree:
    """All suffixes of some texts, cut to `depth` tokens, with counts; texts grow at their ends and can be taken out."""

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
            length += 1
            if (first := child.text) is not None:  # a leaf: the suffix that was alone here is stored a token further
                child.text, child.children = None, {}
                if length < self.depth and child.place < len(first.ids):
                    child.children[first.ids[child.place]] = Node(first, child.place + 1)
                elif length < self.depth:
                    first.open.append((length, child))
            if length < self.depth:
                text.open.append((length, child))

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

    def walk(self, place: Place, num: int, min_probability: float, vocabulary: int) -> tuple[list[int], float]:
        """Up to `num` most frequent tokens of the vocabulary behind a place, and the summed path probabilities."""
        ids: list[int] = []
        path, score = 1.0, 0.0
        while len(ids) < num:
            total = place.node.count
            least = min_probability * total / path - 1e-9  # a count on the edge stays, however it is rounded
            counts = {token: n for token, n in self.follow(place).items() if n >= least and token < vocabulary}
            if not counts:
                break
            token = max(counts, key=counts.__getitem__)
            path *= counts[token] / total
            score += path
            ids.append(token)
            place = self.step(place, token)
        return ids, score


class SharedSuffixes:
    """A suffix tree for several requests, whose speed can thus tell of others' texts; users hold its `lock`."""

    def __init__(self, capacity: int = 100_000, depth: int = 32, tenant: str | None = None) -> None:
        """An empty tree for the requests of `tenant` (None: everybody's), of `capacity` tokens, about 1 kB each."""
        if capacity < 1 or depth < 2 or tenant == "":
            raise UserError("suffix: a shared capacity is 1 or more, its depth 2 or more, and a tenant has a name.")
        self.capacity, self.tenant = capacity, tenant
        self.tree = SuffixTree(depth)
        self.lock = Lock()
        self.size = 0  # tokens held
        self._texts: list[Text] = []

    def extend(self, text: Text, ids: Sequence[int]) -> None:
        """`text` goes on with `ids`; texts that no longer fit are taken out, if need be this one as well."""
        for token in ids:
            if not text.ids:
                self._texts.append(text)
            self.tree.append(text, token)
            self.size += 1
            if self.size > self.capacity:
                self.forget(self._texts[0])

    def forget(self, text: Text) -> None:
        """Take a text out."""
        if text.ids:
            self._texts.remove(text)
            self.size -= len(text.ids)
            self.tree.remove(text)


class Match(NamedTuple):
    """The best of all match lengths."""

    score: float  # sum of the path probabilities
    ids: list[int]


@dataclass
class RowTexts:
    """What is known of one row."""

    tree: SuffixTree
    own: Text = field(default_factory=Text)  # the whole text, in the row's own tree
    answer: Text = field(default_factory=Text)  # what came behind the prompt, in the shared tree
    prompt: int = -1  # tokens of the text when it was first seen: the prompt, which is never shared; -1 before that
    given: int = 0  # tokens of the text that the shared tree has or shall not have


@dataclass
class SuffixDrafter(RowDrafter):
    """For every match length walk the most frequent continuation; the path with the best score wins.

    Only accepted tokens are counted. A match of l tokens is followed for at most `factor` * l + `offset` tokens.
    """

    factor: float = 1.0  # tokens proposed for every matched one
    offset: float = 0.0  # tokens proposed besides
    min_probability: float = 0.1  # path probability (product of child count / node count) below which a proposal ends
    depth: int = 32  # longest run of tokens that is counted, match and proposal together
    scope: Literal["request", "tenant", "global"] = "request"  # whose texts are used besides the request's own
    shared: SharedSuffixes | None = None  # the answers of earlier requests; needed by "tenant" and "global"
    tenant: str | None = None  # whose requests these are, for the scope "tenant"; has to be the shared object's tenant

    def __post_init__(self) -> None:
        grows = self.factor >= 0 and self.offset >= 0 and self.factor + self.offset >= 1
        if not (grows and 0 <= self.min_probability <= 1 and self.depth >= 2):
            raise UserError("suffix: factor + offset is 1 or more, min_probability in [0, 1], depth 2 or more.")
        given = (self.shared is not None, self.tenant is not None)
        if given != {"request": (False, False), "global": (True, False), "tenant": (True, True)}.get(self.scope):
            raise UserError("suffix: scope 'request' takes no shared= and tenant=, 'global' shared=, 'tenant' both.")
        if self.shared is not None and self.shared.tenant != self.tenant:
            raise UserError("suffix: the shared texts are another tenant's. Give every tenant its own object.")

    def new_row(self) -> RowTexts:
        return RowTexts(SuffixTree(self.depth))

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        rows = self.rows = self.rows_of(texts)
        chains: list[list[int]] = []
        with nullcontext() if self.shared is None else self.shared.lock:
            for index, text in enumerate(texts):
                row = rows[index] = self._read(rows[index], text)
                match = self.best(row, text, num_draft, request["vocabulary"])
                chains.append([] if match is None else match.ids)
        return ragged(chains)

    def _read(self, row: RowTexts, text: Sequence[int]) -> RowTexts:
        """Count the tokens that are new; a text that is not the continuation of the last one is counted anew."""
        if list(text[: len(row.own.ids)]) != row.own.ids:
            if self.shared is not None:
                self.shared.forget(row.answer)
            row = RowTexts(SuffixTree(self.depth), prompt=row.prompt, given=row.prompt)
        if row.prompt < 0:
            row.prompt = row.given = len(text)
        for token in text[len(row.own.ids) :]:
            row.tree.append(row.own, token)
        if self.shared is not None:
            self.shared.extend(row.answer, text[row.given :])
            row.given = max(row.given, len(text))
        return row

    def best(self, row: RowTexts, text: Sequence[int], num_draft: int, vocabulary: int) -> Match | None:
        """The match whose path scores best, of equals the row's own before others and the longer; None without any."""
        best: Match | None = None
        for tree in [row.tree] if self.shared is None else [row.tree, self.shared.tree]:
            for length in range(min(len(text), tree.depth - 1), 0, -1):
                most = self.longest(length, num_draft)
                if most < 1 or (best is not None and best.score >= most):
                    break  # no path probability exceeds 1, and shorter matches may propose no more
                place = tree.find(text[-length:])
                if place is None:
                    continue
                ids, score = tree.walk(place, most, self.min_probability, vocabulary)
                if ids and (best is None or score > best.score):
                    best = Match(score, ids)
        return best

    def longest(self, length: int, num_draft: int) -> int:
        """Tokens that a match of `length` tokens may propose."""
        return int(min(num_draft, self.factor * length + self.offset + 1e-6))
