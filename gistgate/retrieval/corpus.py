"""Corpus retrieval: propose what most often follows the latest tokens in a given corpus, after REST
(arXiv 2311.08252), as the chain of the most frequent tokens and not as REST's tree.

Axis letters: N tokens of the corpus with its end marks, M those that are no end marks, H hits, K
    tokens behind each.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gistgate.drafters.text import TextDrafter

END = -1
"""Stands behind every text that is stored, so that none goes on with another; what lies behind it
means nothing.
"""


@dataclass(frozen=True)
class SuffixArray:
    """The places of a corpus, sorted by the `depth` tokens that begin there: runs are found by
    bisection.
    """

    tokens: np.ndarray
    """The documents one after another, each with its end mark [N]; int32."""
    order: np.ndarray
    """Every place that holds a token, sorted [M]; int32, int64 where int32 is too small."""
    depth: int
    """Tokens that count for the order: the longest run that can be found."""

    @classmethod
    def build(cls, documents: Iterable[Sequence[int]], depth: int = 16) -> Self:
        """Sort the token ids of documents."""
        parts = [np.array([*document, END], np.int32) for document in documents]
        return cls.over(np.concatenate(parts), depth)

    @classmethod
    def over(cls, tokens_N: np.ndarray, depth: int) -> Self:
        """Sort documents that stand one after another, each with its end mark; takes about 4
        `depth` bytes of memory for every token meanwhile.
        """
        padded = np.append(tokens_N, np.full(depth, END, np.int32))
        columns = [padded[offset : offset + len(tokens_N)] for offset in range(depth)]
        order_N = np.lexsort(columns[::-1])
        order_M = order_N[tokens_N[order_N] != END]
        size = np.int32 if len(tokens_N) < 2**31 else np.int64
        return cls(tokens_N, order_M.astype(size), depth)

    def find(self, run: list[int]) -> tuple[int, int]:
        """The part of the order, from and up to, where `run` of at most `depth` tokens begins;
        empty where nowhere.
        """

        def begins(place: int) -> Any:
            return self.tokens[place : int(place) + len(run)].tolist()

        first = bisect_left(self.order, run, key=begins)
        return first, bisect_right(self.order, run, first, key=begins)

    def longest_end(self, text: Sequence[int], n_min: int, n_max: int) -> tuple[int, int, int]:
        """Length (0: none) of the longest end of `text`, of n_min .. n_max tokens, that occurs;
        part of the order.
        """
        best = (0, 0, 0)
        # Where an end occurs all shorter ones do, so that the longest is found by bisection.
        low = n_min
        high = min(n_max, len(text))
        while low <= high:
            length = (low + high) // 2
            first, last = self.find([*text[-length:]])
            if first < last:
                best = (length, first, last)
                low = length + 1
            else:
                high = length - 1
        return best


def spaced(first: int, last: int, most: int) -> np.ndarray:
    """At most `most` numbers from `first` to `last` - 1, evenly spaced."""
    chosen = min(last - first, most)
    return first + np.arange(chosen) * (last - first) // max(1, chosen)


class CorpusDrafter(TextDrafter):
    """Find the longest end of the text, of n_max .. n_min tokens, that the corpus contains, and go
    on as it does.
    """

    n_max = 16
    """Longest end that is looked for, in tokens; the order of the corpus has to be as deep."""
    n_min = 2
    """Shortest one, in tokens."""
    max_hits = 5000
    """Occurrences that are counted at most; of more, evenly spaced ones."""

    def __init__(self, corpus: SuffixArray) -> None:
        self.corpus = corpus

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens; empty when the corpus does not contain the end of the
        text.
        """
        corpus = self.corpus
        length, first, last = corpus.longest_end(text, self.n_min, self.n_max)
        begin_H = corpus.order[spaced(first, last, self.max_hits)].astype(np.int64) + length
        next_HK = tokens_behind(corpus.tokens, begin_H, num_draft)
        ids = []
        for step in range(num_draft):
            # Hits whose document has ended have no say any more; equally frequent tokens: the
            # smallest id.
            tokens, counts = np.unique(next_HK[next_HK[:, step] >= 0, step], return_counts=True)
            if not len(tokens):
                break
            ids.append(int(tokens[counts.argmax()]))
            next_HK = next_HK[next_HK[:, step] == ids[-1]]
        return ids


def tokens_behind(tokens: np.ndarray, begin_H: np.ndarray, num: int) -> np.ndarray:
    """The `num` tokens from each of these places on [H, num]; `tokens` ends with an end mark, which
    fills up.
    """
    index_HK = begin_H[:, None] + np.arange(num)
    behind_HK: np.ndarray = tokens[index_HK.clip(max=len(tokens) - 1)]
    return behind_HK
