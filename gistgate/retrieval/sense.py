"""SENSE's retrieval: propose what followed where text and state of the target were alike (arXiv
2606.00021). What followed the longest end of the text, in the store or earlier in the request,
votes; the nearer its state to the latest one, the more. Where the store has too few such places,
its nearest states fill up, whatever their text.

Axis letters: B rows, H candidates, K tokens of each, P width of a key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.drafter import Texts
from gistgate.drafters.text import RowDrafter, matches, ragged
from gistgate.retrieval.corpus import END, SuffixArray, spaced, tokens_behind
from gistgate.retrieval.index import Index, index_for
from gistgate.retrieval.store import Datastore, Projection
from gistgate.trees.tree import Trees, tree


@dataclass(frozen=True)
class Votes:
    """Candidates and what they weigh; a few dozen, for which lists are quicker than arrays."""

    rows: list[list[int]]
    """Tokens of each candidate, with an end mark behind them."""
    weights: list[float]
    """A positive number for each candidate."""

    def branches(self, followers: Sequence[int], depth: int) -> list[tuple[float, int, list[int]]]:
        """What these candidates go on with at `depth`, the smallest token first: the weight of a
        token, the token, and the candidates that have it.
        """
        groups: dict[int, list[int]] = {}
        for row in followers:
            groups.setdefault(self.rows[row][depth], []).append(row)
        groups.pop(END, None)
        branches = []
        for token, group in sorted(groups.items()):
            weight = sum(self.weights[row] for row in group)
            branches.append((weight, token, group))
        return branches


def chain(votes: Votes, min_share: float) -> list[int]:
    """The heaviest next token again and again, as long as `min_share` of all votes stay; of equals
    the smaller id.
    """
    ids: list[int] = []
    least = min_share * sum(votes.weights)
    branches = votes.branches(range(len(votes.rows)), 0)
    while branches:
        weight, token, followers = max(branches, key=itemgetter(0))
        if weight < least:
            break
        ids.append(token)
        branches = votes.branches(followers, len(ids))
    return ids


def trie(votes: Votes, nodes: int, min_share: float) -> tuple[list[int], list[int]]:
    """Tokens and parents (-1: none) of the candidates' trie: the heaviest nodes that have
    `min_share` of all votes.
    """
    ids: list[int] = []
    parents: list[int] = []
    least = min_share * sum(votes.weights)
    ties = count()
    heap: list[tuple[float, int, int, int, int, list[int]]] = []

    def grow(node: int, depth: int, followers: Sequence[int]) -> None:
        for weight, token, group in votes.branches(followers, depth):
            if weight >= least:
                heappush(heap, (-weight, next(ties), token, node, depth + 1, group))

    grow(-1, 0, range(len(votes.rows)))
    while heap and len(ids) < nodes:
        _, _, token, parent, depth, followers = heappop(heap)
        ids.append(token)
        parents.append(parent)
        grow(len(ids) - 1, depth, followers)
    return ids, parents


@dataclass
class RowStates:
    """The dynamic part of one row: its own states, and the tokens they predicted."""

    keys: list[np.ndarray] = field(default_factory=list)
    """One [P] for every token of `tokens`; the last is the query."""
    tokens: list[int] = field(default_factory=list)


class SenseDrafter(RowDrafter):
    """Compare texts alone until `observe` has given the first states."""

    new_row = RowStates
    n_max = 8
    """Longest end of the text that is looked up, in tokens."""
    n_min = 1
    """Shortest that counts as an occurrence; without a state to ask, a single token does."""
    hits = 128
    """Occurrences in the store that vote at most; of more, evenly spaced ones."""
    fill = 1
    """Where the text has fewer occurrences, the nearest states fill up. A chain follows the best
    candidates alone, so that they matter only where it has none."""
    priority = 1.0
    """What an occurrence of the text is worth, in cosines: a large one ranks all of them before
    states alone."""
    temperature = 0.1
    """A vote weighs exp(score / temperature): near 0 the best score decides, a large one counts
    votes."""
    min_share = 0.4
    """Where fewer of the votes agree on the proposal so far, it ends; 0 never ends it."""
    own_share = 0.375
    """Share of the votes that the request's own text has where it and the store have
    candidates."""

    def __init__(self, store: Datastore, semantic: bool = True) -> None:
        """Look up texts in `store`, and states where it is `semantic`; else all votes weigh the
        same.
        """
        self.store = store
        self.semantic = semantic
        self.layers = frozenset({store.config.layer} if semantic else ())
        self.projection = store.projection
        self.lexicon = SuffixArray.over(store.tokens, self.n_max)

    @cached_property
    def index(self) -> Index:
        """How the store is searched by states, where the target computes; made when first asked
        for.
        """
        return index_for(self.store, self.projection.bias.device)

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        pairs = zip(self.rows, texts)
        candidates = [self.votes(row, text, num_draft, vocabulary) for row, text in pairs]
        return self.elected(candidates)

    def elected(self, candidates: list[Votes]) -> Draft:
        """The draft that these votes of every row make."""
        return ragged([chain(votes, self.min_share) for votes in candidates])

    def votes(self, row: RowStates, text: Sequence[int], num: int, vocabulary: int) -> Votes:
        """All candidates of at most `num` tokens, none of them outside the vocabulary."""
        query = self.query(row, text)
        begin_H, stored_H = self.stored(text, query)
        stored_HK = tokens_behind(self.store.tokens, begin_H, num)
        begin_H, own_H = self.earlier(row, text, query)
        own_HK = tokens_behind(np.array([*text, END]), begin_H, num)
        if len(stored_H) and len(own_H):
            stored_H *= 1 / stored_H.sum()
            own_H *= self.own_share / (1 - self.own_share) / own_H.sum()
        ids_HK = np.concatenate([stored_HK, own_HK])
        ids_HK[ids_HK >= vocabulary] = END
        rows = np.pad(ids_HK, ((0, 0), (0, 1)), constant_values=END)
        return Votes(rows.tolist(), [*stored_H.tolist(), *own_H.tolist()])

    def query(self, row: RowStates, text: Sequence[int]) -> np.ndarray | None:
        """The state [P] that predicted the latest token; None where it is not known."""
        if not row.keys or row.tokens[-1] != text[-1] or not np.isfinite(row.keys[-1]).all():
            return None
        return row.keys[-1]

    def stored(
        self,
        text: Sequence[int],
        query: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the store goes on behind the longest end of the text, and near the query where that
        is rare: places and weights, each [H].
        """
        n_min = 1 if query is None else self.n_min
        length, first, last = self.lexicon.longest_end(text, n_min, self.n_max)
        begin_H = self.lexicon.order[spaced(first, last, self.hits)].astype(np.int64)
        numbers_H = np.searchsorted(self.store.places, begin_H + length - 1)
        scores_H = np.full(len(numbers_H), self.priority)
        if query is not None:
            scores_H += self.store.keys.numpy()[numbers_H].astype(np.float32) @ query
        missing = self.fill - len(numbers_H)
        if query is not None and missing > 0:
            cosines, near = self.index.search(torch.from_numpy(query), self.fill)
            near_H = near.numpy()
            is_fresh_H = (near_H >= 0) & ~np.isin(near_H, numbers_H)
            fresh_H = np.flatnonzero(is_fresh_H)[:missing]
            numbers_H = np.append(numbers_H, near_H[fresh_H])
            scores_H = np.append(scores_H, cosines.numpy()[fresh_H])
        return self.store.places[numbers_H] + 1, self.weights(scores_H)

    def earlier(
        self,
        row: RowStates,
        text: Sequence[int],
        query: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the text goes on behind earlier occurrences of its longest end: places and weights,
        each [H]. The cosine is 0 where no state is known.
        """
        runs = matches(text, self.n_max)
        n_min = 1 if query is None else self.n_min
        places = runs[-1] if len(runs) >= n_min else []
        unknown = len(text) - len(row.keys)
        scores_H = np.zeros(len(places))
        if query is not None:
            for number, place in enumerate(places):
                if place > unknown:
                    scores_H[number] = row.keys[place - 1 - unknown] @ query
        return np.array(places, dtype=np.int64), self.weights(scores_H)

    def weights(self, scores_H: np.ndarray) -> np.ndarray:
        """What votes of these scores weigh; the best of them 1."""
        best = scores_H.max(initial=-np.inf)
        weights_H: np.ndarray = np.exp((scores_H - best) / self.temperature)
        return weights_H

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Remember the states that predicted the tokens which stayed, and those tokens."""
        if not self.semantic:
            return
        h_BKD = block.hidden[self.store.config.layer]
        parts = vars(self.projection).values()
        self.projection = Projection(*(part.to(h_BKD.device) for part in parts))
        keys_BKP = self.projection(h_BKD).cpu().numpy()
        drafts = block.draft_ids.tolist()
        lengths = acceptance.length.tolist()
        own_ids = acceptance.own_ids.tolist()
        columns = (self.rows, keys_BKP, drafts, lengths, own_ids)
        for row, keys_KP, draft, length, own_id in zip(*columns):
            row.keys.extend(keys_KP[: length + 1])
            row.tokens.extend([*draft[:length], own_id])


class SenseTree(SenseDrafter):
    """SENSE's retrieval as a tree: the heaviest nodes of all candidates, not one chain."""

    form = Trees
    nodes = 16
    """Most nodes of a tree."""
    min_share = 0.02
    """Least share of the votes that a node has."""
    n_min = 4
    """Shortest occurrence beside a state: shorter ones say less, and a tree has room for many."""
    fill = 32
    """Candidates, states included."""
    priority = 0.1
    """What an occurrence of the text is worth, in cosines."""

    def elected(self, candidates: list[Votes]) -> Draft:
        tries = [trie(votes, self.nodes, self.min_share) for votes in candidates]
        return tree([ids for ids, _ in tries], [parents for _, parents in tries])
