"""What a drafter is: something cheap that proposes the next tokens of every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from gistgate.block import Sampling
from gistgate.decoding.cache import RowCache


@dataclass(frozen=True)
class Draft:
    """A chain of proposed tokens for each of B rows."""

    ids: Tensor
    """x_1 .. x_K [B, K]; anything where not valid."""
    valid: Tensor
    """A prefix of True for each row [B, K]; all False where nothing was found."""
    q: Tensor | None = None
    """Processed draft probabilities [B, K, V] when sampling or asked for; None: each proposal counts as certain."""
    forwards: int = 0
    """Forwards of a draft model that this took."""


class Drafter(Protocol):
    """Proposes, and is told afterwards what stayed. One batch at a time: `start` forgets the one before.

    A drafter that learns from the target's rows has `observe(block, acceptance)` as well: it is called after every
    verification, refused and empty proposals included, before `settle` and `select`.
    """

    gives_q: ClassVar[bool]
    """True when it can name draft probabilities."""

    def start(self, batch: int) -> None:
        """A new batch of that many rows begins."""
        ...

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
        """Up to `num_draft` tokens behind each text, K as many as the longest; `uniforms [B, num_draft]` to draw."""
        ...

    def settle(self, accepted: Sequence[int]) -> None:
        """Of row b's proposal the first `accepted[b]` tokens stayed."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Only these rows go on."""
        ...

    def read(self, texts: Sequence[Sequence[int]]) -> list[RowCache]:
        """Begin a batch of these texts, read all of them, and return what is remembered."""
        ...

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        """What is remembered of these rows, to `restore` later."""
        ...

    def restore(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        """Begin a batch whose row b has already read `lengths[b]` tokens of `caches[b]`."""
        ...
