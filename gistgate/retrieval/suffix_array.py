"""A corpus of token ids whose runs are found by bisection: a suffix array, in one safetensors file.

Axis letters: N tokens of the corpus with one end mark behind every document, M those that are no end marks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from gistgate.core.files import save_tensors
from gistgate.core.utils import UserError

END = -1
"""Stands behind every text that is stored, so that none goes on with another; what lies behind it means nothing."""

FORMAT = "gistgate suffix array 1"
"""Says what a file is; another layout gets another number."""
PAIRS = 1000
"""Neighbours whose order is tested when a file is opened."""


@dataclass(frozen=True)
class SuffixArray:
    """The places of a corpus, sorted by the `depth` tokens that begin there."""

    tokens: np.ndarray  # the documents one after another, each with its end mark [N]; int32
    order: np.ndarray  # every place that holds a token, sorted [M]; int32, int64 where int32 is too small
    depth: int  # tokens that count for the order: the longest run that can be found
    tokenizer: str = ""  # hash of the vocabulary that the ids belong to; empty where nobody said

    @property
    def largest(self) -> int:
        """The largest token id."""
        return int(self.tokens.max())

    @classmethod
    def build(cls, documents: Iterable[Sequence[int]], depth: int = 16, tokenizer: str = "") -> SuffixArray:
        """Sort a corpus; takes about 60 bytes of memory for every token meanwhile.

        Args:
            documents: token ids of each document.
            depth: longest run that can be found, in tokens.
            tokenizer: hash of the vocabulary, to be compared when the file is opened.
        """
        if depth < 1:
            raise UserError(f"A suffix array of depth {depth} finds nothing. Use a depth of 1 or more.")
        parts = [np.asarray([*document, END], dtype=np.int64) for document in documents if len(document)]
        if not parts:
            raise UserError("The corpus is empty. Give at least one document with a token in it.")
        if any(int(part[:-1].min()) < 0 or int(part.max()) >= 2**31 for part in parts):
            raise UserError("The corpus holds numbers that are no token ids. Ids lie between 0 and 2147483647.")
        tokens_N = np.concatenate(parts)
        order_N = sorted_places(tokens_N, depth)
        order_M = order_N[tokens_N[order_N] != END]
        size = np.int32 if len(tokens_N) < 2**31 else np.int64
        return cls(tokens_N.astype(np.int32), order_M.astype(size), depth, tokenizer)

    def save(self, path: str | Path) -> None:
        """Write one file, whole or not at all."""
        tensors = {"tokens": torch.from_numpy(self.tokens), "order": torch.from_numpy(self.order)}
        save_tensors(path, tensors, {"format": FORMAT, "depth": str(self.depth), "tokenizer": self.tokenizer})

    @classmethod
    def load(cls, path: str | Path, tokenizer: str = "") -> SuffixArray:
        """Open a file without reading it into memory; the pages are shared by everyone who opens it.

        Args:
            path: the file.
            tokenizer: hash of the vocabulary in use; not compared where it or the file's is empty.
        """
        try:
            with safe_open(path, framework="pt") as file:
                about: dict[str, Any] = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise UserError(f"{path} is no suffix array of this version. Build it again.")
                tokens_N, order_M = (file.get_tensor(name).numpy() for name in ("tokens", "order"))
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing. Build it, or check the path.") from error
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged ({error}). Delete it and build it again.") from error
        array = cls(tokens_N, order_M, int(about["depth"]), about["tokenizer"])
        if not array.is_sound():
            raise UserError(f"{path} is damaged (its places are not those of its tokens). Build it again.")
        if tokenizer and array.tokenizer and tokenizer != array.tokenizer:
            raise UserError(
                f"{path} was built with another tokenizer than the one in use. Build it again with this one."
            )
        return array

    def is_sound(self) -> bool:
        """Whether every place lies in the corpus and holds a token, and sampled neighbours are in order."""
        tokens_N, order_M = self.tokens, self.order
        if tokens_N.ndim != 1 or order_M.ndim != 1 or tokens_N.dtype != np.int32 or order_M.dtype.kind != "i":
            return False
        if not len(order_M) or tokens_N[-1] != END or tokens_N.min() != END:
            return False
        if len(order_M) != int((tokens_N >= 0).sum()) or order_M.min() < 0 or order_M.max() >= len(tokens_N):
            return False
        if (tokens_N[order_M] == END).any():
            return False
        firsts = spaced(0, len(order_M) - 1, PAIRS).tolist()
        return all(self.run(i, self.depth) <= self.run(i + 1, self.depth) for i in firsts)

    def run(self, index: int, length: int) -> list[int]:
        """The first `length` tokens at a place of the order."""
        place = int(self.order[index])
        found: list[int] = self.tokens[place : place + length].tolist()
        return found

    def find(self, run: Sequence[int]) -> tuple[int, int]:
        """The part of the order, from and up to, where `run` of at most `depth` tokens begins; empty where nowhere."""
        wanted, length = list(run), len(run)
        places = range(len(self.order))
        first = bisect_left(places, wanted, key=lambda index: self.run(index, length))
        return first, bisect_right(places, wanted, lo=first, key=lambda index: self.run(index, length))

    def longest_end(self, text: Sequence[int], n_min: int, n_max: int) -> tuple[int, int, int]:
        """Length of the longest end of `text`, of n_min .. n_max tokens, that occurs, and its part of the order.

        The length is 0 where none occurs; n_max is at most the depth.
        """
        best = (0, 0, 0)
        # Where an end occurs all shorter ones do, so that the longest is found by bisection.
        low, high = n_min, min(n_max, len(text))
        while low <= high:
            length = (low + high) // 2
            first, last = self.find(text[-length:])
            if first < last:
                best, low = (length, first, last), length + 1
            else:
                high = length - 1
        return best

    def following(self, first: int, last: int, length: int, num: int, most: int) -> np.ndarray:
        """What follows the runs of `length` tokens at places `first` .. `last` - 1 of the order [H, num].

        At most `most` of them, spaced evenly, are looked at; whatever lies behind an end mark means nothing.
        """
        places_H = self.order[spaced(first, last, most)].astype(np.int64)
        index_HK = places_H[:, None] + length + np.arange(num)
        found: np.ndarray = self.tokens[index_HK.clip(max=len(self.tokens) - 1)]  # the last one is an end mark
        return found


def spaced(first: int, last: int, most: int) -> np.ndarray:
    """At most `most` numbers from `first` to `last` - 1, evenly spaced."""
    num = last - first
    return first + (np.arange(min(num, most)) * num) // max(1, min(num, most))


def sorted_places(tokens_N: np.ndarray, depth: int) -> np.ndarray:
    """The places of a corpus in the order of the `depth` tokens or more that begin there [N], by prefix doubling."""
    rank_N = np.unique(tokens_N, return_inverse=True)[1] + 1
    order_N = np.argsort(rank_N, kind="stable")
    length = 1
    while length < depth and rank_N.max() < len(rank_N):
        behind_N = np.zeros_like(rank_N)  # 0: the corpus ends before
        behind_N[:-length] = rank_N[length:]
        key_N = rank_N * (len(rank_N) + 1) + behind_N
        order_N = np.argsort(key_N, kind="stable")
        rank_N[order_N] = 1 + np.cumsum(np.diff(key_N[order_N], prepend=key_N[order_N[0]]) > 0)
        length *= 2
    return order_N
