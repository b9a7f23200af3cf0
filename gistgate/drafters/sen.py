"""SENSE's retrieval: propose what followed where the target's hidden state was similar (arXiv 2606.00021).

The state that predicted the latest token is the query; a neighbour counts only where it was followed by that token.
Lexical matches in the request's own text and semantic ones are scored together; the best candidate is the chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block, Sampling
from gistgate.drafters.base import Draft
from gistgate.drafters.chains import TextDrafter, ragged
from gistgate.drafters.lookup import PromptLookup
from gistgate.errors import UserError
from gistgate.retrieval.search import ExactIndex, Index
from gistgate.retrieval.store import Datastore


class Candidate(NamedTuple):
    """A continuation."""

    score: float
    """alpha * [lexical match] + beta * cosine."""
    ids: list[int]


@dataclass
class RowStates:
    """The dynamic part of one row: its own states, and the tokens they predicted."""

    keys: list[Tensor] = field(default_factory=list)
    """One [P] for every token of `tokens`, on the CPU; the last is the query."""
    tokens: list[int] = field(default_factory=list)


@dataclass
class SenDrafter(TextDrafter):
    """Needs the decoder to call `observe` after every verification; before the first one only the text is searched."""

    store: Datastore
    neighbours: int = 8
    """Neighbours looked at in the store."""
    alpha: float = 1.0
    """Score of a lexical match."""
    beta: float = 0.1
    """Score of a cosine of 1."""
    n_max: int = 3
    """Longest n-gram that is looked up in the request's own text, in tokens."""
    n_min: int = 2
    """Shortest, in tokens."""
    semantic: bool = True
    """False: the lexical part alone."""
    index: Index | None = None
    """How the store is searched; default: exactly, on the CPU."""

    def __post_init__(self) -> None:
        if self.neighbours < 1 or not 1 <= self.n_min <= self.n_max:
            raise UserError(
                f"sen: neighbours {self.neighbours} is 1 or more, and n_min {self.n_min} lies in 1 .. n_max "
                f"{self.n_max}. Change the one that does not."
            )
        self.search: Index = self.index or ExactIndex(self.store.keys)
        self.fallbacks: Counter[str] = Counter()
        """Proposals made without the store, by reason: "no state", "empty store", "not finite"."""
        self.rows: list[RowStates] = []

    @property
    def layers(self) -> frozenset[str]:
        """Hidden states that blocks have to carry."""
        return frozenset({self.store.config.layer}) if self.semantic else frozenset()

    def start(self, batch: int) -> None:
        self.rows = [RowStates() for _ in range(batch)]

    def select(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def propose(
        self,
        texts: Sequence[Sequence[int]],
        num_draft: int,
        *,
        vocabulary: int,
        sampling: Sampling,
        uniforms: Tensor | None,
        want_q: bool,
    ) -> Draft:
        if len(self.rows) != len(texts):
            self.start(len(texts))
        chains = []
        for row, text in zip(self.rows, texts, strict=True):
            found = [*self.lexical(text, num_draft), *self.nearest(row, text, num_draft)]
            best = max(found, key=lambda candidate: candidate.score, default=Candidate(0.0, []))
            outside = next((place for place, token in enumerate(best.ids) if token >= vocabulary), len(best.ids))
            chains.append(best.ids[:outside])
        return ragged(chains)

    def lexical(self, text: Sequence[int], num_draft: int) -> list[Candidate]:
        """The copy that prompt lookup finds, unless its match is shorter than `n_min`."""
        if len(text) < self.n_min:
            return []
        lookup = PromptLookup(self.n_max, "last")
        ids = lookup.continuation(text, num_draft)
        if not ids or (self.n_min > 1 and not contains(text[:-1], text[-self.n_min :])):
            return []
        return [Candidate(self.alpha, ids)]

    def nearest(self, row: RowStates, text: Sequence[int], num_draft: int) -> list[Candidate]:
        """Continuations of similar states, of the store and of this request, that began with the latest token."""
        if not self.semantic:
            return []
        if not row.keys or row.tokens[-1] != text[-1]:
            self.fallbacks["no state"] += 1
            return []
        query, found = row.keys[-1], []
        if not bool(query.isfinite().all()):
            self.fallbacks["not finite"] += 1
            return []
        if not self.store.config.num_keys:
            self.fallbacks["empty store"] += 1
        else:
            cosines, numbers = self.search.search(query[None], self.neighbours)
            for cosine, number in zip(cosines[0].tolist(), numbers[0].tolist(), strict=True):
                if number >= 0:
                    found.append((cosine, self.store.following(number, num_draft + 1)))
        if len(row.keys) > 1:
            values, places = (torch.stack(row.keys[:-1]) @ query).topk(min(self.neighbours, len(row.keys) - 1))
            for cosine, place in zip(values.tolist(), places.tolist(), strict=True):
                found.append((cosine, row.tokens[place : place + num_draft + 1]))
        return [Candidate(self.beta * cosine, ids[1:]) for cosine, ids in found if ids[:1] == [text[-1]] and ids[1:]]

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Remember the states that predicted the tokens which stayed, and those tokens."""
        if not self.semantic or not self.rows:
            return
        keys_BKP = self.store.projection.to(block.hidden[self.store.config.layer].device)(
            block.hidden[self.store.config.layer]
        ).cpu()
        ids, own = block.draft_ids.tolist(), acceptance.own_ids.tolist()
        for place, (row, length) in enumerate(zip(self.rows, acceptance.length.tolist(), strict=True)):
            row.keys.extend(keys_BKP[place, : length + 1])
            row.tokens.extend([*ids[place][:length], own[place]])


def contains(text: Sequence[int], run: Sequence[int]) -> bool:
    """Whether `run` occurs in `text`."""
    return any(list(text[start : start + len(run)]) == list(run) for start in range(len(text) - len(run) + 1))
