"""Drafters that read texts alone: prompt lookup, and what the target found likely behind each
token.

Axis letters: B rows, K drafted tokens, V vocabulary, k successors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.drafter import Drafter, Texts
from gistgate.core.reader import RowCache
from gistgate.core.utils import UserError


def shared(ids: Sequence[int], vocabulary: int) -> list[int]:
    """The ids before the first one that the models do not share: a prompt may hold tokens of the
    tokenizer alone.
    """
    return list(takewhile(lambda token: token < vocabulary, ids))


def occurrences(text: Sequence[int], n_max: int, latest: bool = True) -> Iterator[tuple[int, int]]:
    """(n, where it goes on) of the text's last n tokens wherever they stand earlier, the longer and
    `latest` first.
    """
    for length in range(min(n_max, len(text) - 1), 0, -1):
        pattern = list(text[-length:])
        starts = range(len(text) - length)
        for start in reversed(starts) if latest else starts:
            if text[start] == pattern[0] and list(text[start : start + length]) == pattern:
                yield length, start + length


def ragged(chains: Sequence[Sequence[int]]) -> Draft:
    """Chains of unequal length as a draft, K as many as the longest: the target reads no more than
    was found.
    """
    lengths = torch.tensor([len(chain) for chain in chains])
    widest = int(lengths.max())
    return Draft(right_padded(chains, widest), torch.arange(widest) < lengths[:, None])


def right_padded(rows: Sequence[Sequence[int]], widest: int, filler: int = 0) -> Tensor:
    """Rows of unequal length as one tensor [B, widest] with `filler` behind them."""
    padded = [[*row, *[filler] * (widest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), widest)


class RowDrafter(Drafter):
    """What drafters share that know something of each row: `new_row` is what they know of one at
    first.
    """

    rows: list[Any] | tuple[()] = ()
    new_row: Callable[[], Any]

    def rows_of(self, texts: Texts) -> list[Any]:
        """What is known of the rows; a batch that was not begun is begun here."""
        if len(self.rows) != len(texts):
            self.start(len(texts))
        return list(self.rows)

    def start(self, batch: int) -> None:
        self.rows = [self.new_row() for _ in range(batch)]

    def select(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def admit(
        self, present: int, texts: Texts, caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        self.rows = [*self.rows, *(self.new_row() for _ in texts)]


@dataclass
class PromptLookup(Drafter):
    """Copy what followed the longest n-gram that occurred before
    (apoorvumang/prompt-lookup-decoding).
    """

    n_max: int = 3  # longest n-gram looked for, in tokens
    pick: Literal["first", "last"] = "first"  # which earlier occurrence is copied

    def __post_init__(self) -> None:
        if self.n_max < 1 or self.pick not in ("first", "last"):
            raise UserError(
                f"lookup: n_max {self.n_max} must be 1 or more and pick '{self.pick}' 'first' or"
                " 'last'."
            )

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        return ragged([shared(self.continuation(text, num_draft), vocabulary) for text in texts])

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens; empty when the latest token never occurred before."""
        found = occurrences(text, self.n_max, latest=self.pick == "last")
        return next((list(text[start : start + num_draft]) for _, start in found), [])


UNKNOWN = -1  # in place of a successor that was never seen


@dataclass
class RowSuccessors:
    """What is known of one row."""

    table: np.ndarray | None = (
        None  # A [V, k], successors of every token, the likeliest first; None before a text
    )
    read: int = UNKNOWN  # the token that the target reads in front of the latest proposal


@dataclass
class TokenRecycling(RowDrafter):
    """Token Recycling (arXiv 2408.08696), along the likeliest successors: x_1 = A[last token], x_2
    = A[x_1], ...
    """

    learns = True
    k: int = 8  # successors remembered for every token; a chain follows the first
    reset: Literal["request", "keep"] = "request"
    """"request": every row begins with an empty A; "keep": one A for all requests, as in the paper,
    so that speed, and under loose rules texts, tell of others' texts."""
    from_text: bool = True
    """Tokens that A does not know take the token behind their last occurrence in the prompt."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.reset not in ("request", "keep"):
            raise UserError(
                f"recycle: k {self.k} must be 1 or more and reset '{self.reset}' 'request' or"
                " 'keep'."
            )
        self._kept: np.ndarray | None = None
        self.new_row = RowSuccessors

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        rows = zip(self.rows_of(texts), texts, strict=True)
        return ragged([self._chain(row, text, num_draft, vocabulary) for row, text in rows])

    def _chain(
        self, row: RowSuccessors, text: Sequence[int], num_draft: int, vocabulary: int
    ) -> list[int]:
        if row.table is None:
            row.table = self._table(vocabulary)
            if self.from_text:
                fill_from_text(row.table, text)
        row.read = token = text[-1]
        ids: list[int] = []
        while (
            len(ids) < num_draft
            and token < vocabulary
            and (token := int(row.table[token, 0])) != UNKNOWN
        ):
            ids.append(token)
        return ids

    def _table(self, vocabulary: int) -> np.ndarray:
        """The A [V, k] that a row begins with."""
        if self.k > vocabulary:
            raise UserError(
                f"recycle: k {self.k} exceeds the vocabulary of {vocabulary} tokens. Lower k."
            )
        table_Vk = self._kept
        if table_Vk is None or self.reset == "request":
            table_Vk = np.full((vocabulary, self.k), UNKNOWN, dtype=np.int32)
            self._kept = table_Vk if self.reset == "keep" else None
        assert len(table_Vk) == vocabulary, "a drafter that keeps its table serves one target"
        return table_Vk

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Remember the k likeliest tokens behind every token that the target has just read, refused
        ones as well.
        """
        if not self.rows or self.rows[0].read == UNKNOWN:
            return  # nothing was proposed in this round, so what was read is not known
        # Logits [B, K + 1, V]: row 0 comes behind the last token of the text, row j behind x_j.
        z_BKk, ids_BKk = block.logits.topk(self.k)
        top_BKk = ids_BKk.masked_fill(z_BKk == -torch.inf, UNKNOWN).cpu().numpy()
        ids_BK = block.draft_ids.tolist()
        length_B = block.valid.sum(-1).tolist()
        for row, top_Kk, ids, length in zip(self.rows, top_BKk, ids_BK, length_B, strict=True):
            assert row.table is not None
            # A token read twice keeps the row of least depth, whose context is the likeliest to
            # stay.
            tokens, places = np.unique([row.read, *ids[:length]], return_index=True)
            known = tokens < len(row.table)
            row.table[tokens[known]] = top_Kk[places[known]]
            row.read = UNKNOWN


def fill_from_text(table_Vk: np.ndarray, text: Sequence[int]) -> None:
    """Give every token of a text that has no successor yet the one behind its last occurrence."""
    ids = np.asarray(text)
    tokens, places = np.unique(
        ids[-2::-1], return_index=True
    )  # the first of the reversed text is the last
    successors = ids[len(ids) - 1 - places]
    known = (tokens < len(table_Vk)) & (successors < len(table_Vk))
    tokens = tokens[known]
    successors = successors[known]
    unset = table_Vk[tokens, 0] == UNKNOWN
    table_Vk[tokens[unset], 0] = successors[unset]
