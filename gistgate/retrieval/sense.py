"""SENSE's retrieval: propose what followed where text and state of the target were alike (arXiv
2606.00021). What followed the longest end of the text, in the store or earlier in the request,
votes; the nearer its state to the latest one, the more. Where the store has too few such places,
its nearest states fill up, whatever their text.

Axis letters: B rows, H candidates, K tokens of each, P width of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.drafter import Texts
from gistgate.core.utils import UserError
from gistgate.drafters.text import RowDrafter, ragged
from gistgate.retrieval.corpus import END, SuffixArray, spaced
from gistgate.retrieval.index import Index, index_for
from gistgate.retrieval.store import Datastore, Projection
from gistgate.trees.tree import Trees, tree


class Votes(NamedTuple):
    """Candidates and what they weigh."""

    ids: np.ndarray  # their tokens [H, K]
    weights: np.ndarray  # positive numbers [H]


def chain(votes: Votes, min_share: float) -> list[int]:
    """The heaviest next token again and again, as long as `min_share` of all votes stay; of equals
    the smaller id.
    """
    rows = votes.ids.tolist()  # a few dozen rows: quicker than arrays
    weights = votes.weights.tolist()
    ids: list[int] = []
    least = min_share * sum(weights)
    followers = list(range(len(rows)))
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
    """Tokens and parents (-1: none) of the candidates' trie: the heaviest nodes that have
    `min_share` of all votes.
    """
    rows = votes.ids.tolist()
    weights = votes.weights.tolist()
    ids: list[int] = []
    parents: list[int] = []
    least = min_share * sum(weights)
    ties = count()
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


@dataclass
class RowStates:
    """The dynamic part of one row: its own states, and the tokens they predicted."""

    keys: list[np.ndarray] = field(
        default_factory=list
    )  # one [P] for every token of `tokens`; the last is the query
    note: str = ""  # why the latest proposal was made without states
    tokens: list[int] = field(default_factory=list)


@dataclass
class SenseDrafter(RowDrafter):
    """Compare texts alone until `observe` has given the first states."""

    learns = True
    store: Datastore
    n_max: int = 8  # longest end of the text that is looked up, in tokens
    n_min: int = (
        1  # shortest that counts as an occurrence; without a state to ask, a single token does
    )
    hits: int = 128  # occurrences in the store that vote at most; of more, evenly spaced ones
    fill: int = 1
    """Where the text has fewer occurrences, the nearest states fill up. A chain follows the best
    candidates alone, so that they matter only where it has none."""
    priority: float = 1.0
    """What an occurrence of the text is worth, in cosines: a large one ranks all of them before
    states alone.
    """
    temperature: float = 0.1
    """A vote weighs exp(score / temperature): near 0 the best score decides, a large one counts
    votes.
    """
    min_share: float = (
        0.4  # where fewer of the votes agree on the proposal so far, it ends; 0 never ends it
    )
    own_share: float = (
        0.375  # share of the votes that the request's own text has where both have candidates
    )
    semantic: bool = True  # false: all votes weigh the same and states are never asked for
    index: Index | None = (
        None  # how the store is searched by states; default: `index_for` where the target computes
    )

    def __post_init__(self) -> None:
        counts = self.hits >= 1 and self.fill >= 0 and 1 <= self.n_min <= self.n_max
        if not (
            counts and self.temperature > 0 and 0 <= self.min_share <= 1 and 0 <= self.own_share < 1
        ):
            raise UserError(
                f"sen: hits {self.hits} is 1 or more, fill {self.fill} 0 or more, n_min"
                f" {self.n_min} in 1 .. n_max {self.n_max}, temperature {self.temperature:g} above"
                f" 0, min_share {self.min_share:g} in [0, 1] and own_share {self.own_share:g} in"
                " [0, 1). Change the one that is not."
            )
        empty = not self.store.config.num_keys
        self.lexicon = None if empty else SuffixArray.build(self.store.answers, self.n_max)
        self.new_row = RowStates
        self._keys = self.store.keys.numpy()
        self._projection = self.store.projection

    @cached_property
    def search(self) -> Index:
        """Made when states are first asked for."""
        return self.index or index_for(self.store, self._projection.bias.device)

    @property
    def layers(self) -> frozenset[str]:  # type: ignore[override]
        """Hidden states that blocks have to carry."""
        return frozenset({self.store.config.layer}) if self.semantic else frozenset()

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        found = self.candidates(texts, num_draft, vocabulary)
        draft = ragged([[] if votes is None else chain(votes, self.min_share) for votes in found])
        return replace(draft, notes=self.notes)

    @property
    def notes(self) -> list[str]:
        """Of each row why states were not asked: "sen_no_state", "sen_not_finite",
        "sen_empty_store" or "".
        """
        return [row.note for row in self.rows]

    def candidates(self, texts: Texts, num: int, vocabulary: int) -> list[Votes | None]:
        """What votes in every row."""
        rows = zip(self.rows_of(texts), texts, strict=True)
        return [self.votes(row, text, num, vocabulary) for row, text in rows]

    def votes(self, row: RowStates, text: Sequence[int], num: int, vocabulary: int) -> Votes | None:
        """All candidates of at most `num` tokens, none of them outside the vocabulary; None without
        any.
        """
        row.note = ""
        query = self.query(row, text)
        own = self.earlier(row, text, query, num)
        stored = self.stored(row, text, query, num)
        if own is not None and stored is not None and self.own_share:
            parts = (stored, 1.0), (own, self.own_share / (1 - self.own_share))
            weights = np.concatenate(
                [one.weights * (total / one.weights.sum()) for one, total in parts]
            )
            stored = Votes(np.concatenate([stored.ids, own.ids]), weights)
        votes = own if stored is None else stored
        return (
            None
            if votes is None
            else Votes(np.where(votes.ids < vocabulary, votes.ids, END), votes.weights)
        )

    def query(self, row: RowStates, text: Sequence[int]) -> np.ndarray | None:
        """The state [P] that predicted the latest token, or None; the row notes why."""
        if not self.semantic:
            return None
        if not row.keys or row.tokens[-1] != text[-1]:
            row.note = "sen_no_state"
        elif not np.isfinite(row.keys[-1]).all():
            row.note = "sen_not_finite"
        else:
            return row.keys[-1]
        return None

    def stored(
        self, row: RowStates, text: Sequence[int], query: np.ndarray | None, num: int
    ) -> Votes | None:
        """What the store has after the longest end of the text, and near the query where that is
        little.
        """
        if self.lexicon is None:
            row.note = "sen_empty_store"
            return None
        length, first, last = self.lexicon.longest_end(
            text, 1 if query is None else self.n_min, self.n_max
        )
        numbers_H = np.zeros(0, dtype=np.int64)
        scores_H = np.zeros(0)
        if length:
            places_H = (
                self.lexicon.order[spaced(first, last, self.hits)].astype(np.int64) + length - 1
            )
            numbers_H = np.searchsorted(self.store.places, places_H)
            cosines_H = 0.0 if query is None else self._keys[numbers_H].astype(np.float32) @ query
            scores_H = np.zeros(len(numbers_H)) + self.priority + cosines_H
        if query is not None and len(numbers_H) < self.fill:
            cosines_H, near_H = (
                one[0].numpy()
                for one in self.search.search(torch.from_numpy(query)[None], self.fill)
            )
            fresh_H = np.flatnonzero((near_H >= 0) & ~np.isin(near_H, numbers_H))[
                : self.fill - len(numbers_H)
            ]
            numbers_H = np.append(numbers_H, near_H[fresh_H])
            scores_H = np.append(scores_H, cosines_H[fresh_H])
        return self.weighed(self.store.tokens, self.store.places[numbers_H] + 1, scores_H, num)

    def earlier(
        self, row: RowStates, text: Sequence[int], query: np.ndarray | None, num: int
    ) -> Votes | None:
        """What followed the longest end of the text earlier in it; where no state is known, the
        cosine is 0.
        """
        places = longest_matches(text, 1 if query is None else self.n_min, self.n_max)
        if not places:
            return None
        unknown = len(text) - len(row.keys)
        cosines = [
            (
                0.0
                if query is None or place <= unknown
                else float(row.keys[place - 1 - unknown] @ query)
            )
            for place in places
        ]
        return self.weighed(np.array([*text, END]), np.array(places), np.array(cosines), num)

    def weighed(
        self, tokens: np.ndarray, places_H: np.ndarray, scores_H: np.ndarray, num: int
    ) -> Votes | None:
        """The votes of what stands at these places of `tokens`, which end with an end mark."""
        if not len(places_H):
            return None
        ids_HK = tokens[(places_H[:, None] + np.arange(num)).clip(max=len(tokens) - 1)]
        return Votes(ids_HK, np.exp((scores_H - scores_H.max()) / self.temperature))

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Remember the states that predicted the tokens which stayed, and those tokens."""
        if not self.semantic or not self.rows:
            return
        h_BKD = block.hidden[self.store.config.layer]
        if self._projection.bias.device != h_BKD.device:
            self._projection = Projection(
                *(part.to(h_BKD.device) for part in vars(self.store.projection).values())
            )
        keys_BKP = self._projection(h_BKD).cpu().numpy()
        ids = block.draft_ids.tolist()
        own = acceptance.own_ids.tolist()
        for place, (row, length) in enumerate(
            zip(self.rows, acceptance.length.tolist(), strict=True)
        ):
            row.keys.extend(keys_BKP[place, : length + 1])
            row.tokens.extend([*ids[place][:length], own[place]])


def longest_matches(text: Sequence[int], n_min: int, n_max: int) -> list[int]:
    """Where the text goes on behind earlier occurrences of its longest end of n_min .. n_max tokens
    that has any.
    """
    places = [place for place, token in enumerate(text[:-1], start=1) if token == text[-1]]
    length = 1
    while places and length < n_max:
        longer = [
            place
            for place in places
            if place > length and text[place - length - 1] == text[-length - 1]
        ]
        if not longer:
            break
        places = longer
        length = length + 1
    return places if length >= n_min else []


@dataclass
class SenseTree(SenseDrafter):
    """SENSE's retrieval as a tree: the heaviest nodes of all candidates, not one chain."""

    form = Trees
    nodes: int = 16  # most nodes of a tree
    min_share: float = 0.02  # least share of the votes that a node has
    n_min: int = (
        4  # shortest occurrence beside a state: shorter ones say less, and a tree has room for many
    )
    fill: int = 32  # candidates, states included
    priority: float = 0.1  # what an occurrence of the text is worth, in cosines

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise UserError(f"sen-tree: {self.nodes} nodes make no tree. Use 1 or more.")
        super().__post_init__()

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        grown = [
            ([], []) if votes is None else trie(votes, self.nodes, self.min_share)
            for votes in self.candidates(texts, num_draft, vocabulary)
        ]
        return replace(
            tree([ids for ids, _ in grown], [parents for _, parents in grown]), notes=self.notes
        )
