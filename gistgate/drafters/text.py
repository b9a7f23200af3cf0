"""Drafters that read texts alone: prompt lookup, and what the target found likely behind each
token.

Axis letters: B rows, K drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.cache import RowCache
from gistgate.core.drafter import Drafter, Texts


def shared(ids: Sequence[int], vocabulary: int) -> list[int]:
    """The ids before the first one that the models do not share: a prompt may hold tokens of the
    tokenizer alone.
    """
    return list(takewhile(lambda token: token < vocabulary, ids))


def matches(text: Sequence[int], n_max: int) -> list[list[int]]:
    """Where the text goes on behind earlier occurrences of its last 1, 2 .. n_max tokens, in order;
    as many lists as there are lengths that occurred.
    """
    runs: list[list[int]] = []
    places = [place for place, token in enumerate(text[:-1], start=1) if token == text[-1]]
    while places and len(runs) < n_max:
        runs.append(places)
        num = len(runs)
        before = text[-num - 1]
        places = [place for place in places if place > num and text[place - num - 1] == before]
    return runs


def ragged(chains: Texts) -> Draft:
    """Chains of unequal length as a draft, K as many as the longest: the target reads no more than
    was found.
    """
    lengths = torch.tensor([len(chain) for chain in chains])
    widest = int(lengths.max())
    return Draft(right_padded(chains, widest), torch.arange(widest) < lengths[:, None])


def right_padded(rows: Texts, widest: int, filler: int = 0) -> Tensor:
    """Rows of unequal length as one tensor [B, widest] with `filler` behind them."""
    padded = [[*row, *[filler] * (widest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), widest)


class RowDrafter(Drafter):
    """What drafters share that know something of each row: `new_row` is what they know of one at
    first.
    """

    rows: Any = ()  # a list of them
    new_row: Callable[[], Any]

    def start(self, batch: int) -> None:
        super().start(batch)
        self.rows = [self.new_row() for _ in range(batch)]

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.rows = [self.rows[row] for row in rows]

    def admit(self, texts: Texts, caches: Sequence[RowCache]) -> None:
        super().admit(texts, caches)
        self.rows = [*self.rows, *(self.new_row() for _ in texts)]


class TextDrafter(Drafter):
    """What drafters share whose proposal for a row depends on its text alone."""

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        return ragged([shared(self.continuation(text, num_draft), vocabulary) for text in texts])

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens behind a text."""
        raise NotImplementedError


class PromptLookup(TextDrafter):
    """Copy what followed the first occurrence of the longest n-gram that occurred before
    (apoorvumang/prompt-lookup-decoding).
    """

    n_max = 3  # longest n-gram looked for, in tokens

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens; empty when the latest token never occurred before."""
        runs = matches(text, self.n_max)
        return list(text[runs[-1][0] :][:num_draft]) if runs else []


@dataclass
class RowSuccessors:
    """What is known of one row."""

    # The likeliest successor of every token; those of the prompt begin with what follows there.
    table: dict[int, int] = field(default_factory=dict)
    # The token that the target reads in front of the latest proposal; None without one.
    read: int | None = None


class TokenRecycling(RowDrafter):
    """Token Recycling (arXiv 2408.08696), along the likeliest successors: x_1 = A[last token], x_2
    = A[x_1], ...

    Unlike the paper's, every request begins with an A of its own, so that its speed, and under
    loose rules its text, tell nothing of other requests.
    """

    new_row = RowSuccessors

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        rows = zip(self.rows, texts)
        return ragged([self._chain(row, text, num_draft, vocabulary) for row, text in rows])

    def _chain(
        self, row: RowSuccessors, text: Sequence[int], num_draft: int, vocabulary: int
    ) -> list[int]:
        if not row.table:
            row.table = dict(pairwise(text))  # of several occurrences the last one counts
        row.read = token = text[-1]
        ids: list[int] = []
        while len(ids) < num_draft and token < vocabulary:
            token = row.table.get(token, vocabulary)
            ids.append(token)
        return shared(ids, vocabulary)

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Remember the likeliest token behind every token that the target has just read, refused
        ones as well.
        """
        # Row 0 of the target comes behind the last token of the text, row j behind x_j.
        top_BK = block.top_ids.tolist()
        ids_BK = block.draft_ids.tolist()
        length_B = block.valid.sum(-1).tolist()
        for row, top_K, ids_K, length in zip(self.rows, top_BK, ids_BK, length_B):
            if row.read is not None:  # None: nothing was proposed, so what was read is not known
                steps = zip([row.read, *ids_K[:length]], top_K)
                # Of a token read twice the first reading counts: its context is likelier to stay.
                row.table.update(reversed(list(steps)))
                row.read = None
