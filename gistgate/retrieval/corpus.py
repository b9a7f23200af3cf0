"""Corpus retrieval: propose what most often follows the latest tokens in a given corpus, after REST (arXiv 2311.08252).

Where REST verifies a tree of the 64 most frequent continuations, this proposes the chain of the most frequent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gistgate.core.block import Draft
from gistgate.core.drafter import Drafter, Texts
from gistgate.core.utils import UserError
from gistgate.drafters.text import ragged
from gistgate.retrieval.suffix_array import SuffixArray


@dataclass
class CorpusDrafter(Drafter):
    """Find the longest end of the text, of n_max .. n_min tokens, that the corpus contains, and go on as it does."""

    corpus: SuffixArray
    n_max: int = 16  # longest end looked for, in tokens
    n_min: int = 2  # shortest one, in tokens
    max_hits: int = 5000  # occurrences that are counted at most; of more, evenly spaced ones

    def __post_init__(self) -> None:
        if not 1 <= self.n_min <= self.n_max <= self.corpus.depth or self.max_hits < 1:
            raise UserError(
                f"corpus: n_min {self.n_min} to n_max {self.n_max} must lie in 1 .. {self.corpus.depth}, the depth of "
                f"the suffix array, and max_hits {self.max_hits} be 1 or more. Change the one that does not."
            )
        self._largest = self.corpus.largest

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **_: Any) -> Draft:
        if self._largest >= vocabulary:
            raise UserError(
                f"corpus: it holds the token id {self._largest}, but the target has only {vocabulary} ids. Build it "
                "with the target's tokenizer."
            )
        return ragged([self.continuation(text, num_draft) for text in texts])

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens; empty when the corpus does not contain the end of the text."""
        length, first, last = self.corpus.longest_end(text, self.n_min, self.n_max)
        if not length:
            return []
        ids: list[int] = []
        next_HK = self.corpus.following(first, last, length, num_draft, self.max_hits)
        for step in range(num_draft):
            # Hits whose document has ended have no say any more; equally frequent tokens: the smallest id.
            tokens, counts = np.unique(next_HK[next_HK[:, step] >= 0, step], return_counts=True)
            if not len(tokens):
                break
            ids.append(int(tokens[counts.argmax()]))
            next_HK = next_HK[next_HK[:, step] == ids[-1]]
        return ids
