"""What a drafter is: something cheap that proposes the next tokens of every row.

Axis letters: B rows, K drafted tokens of a chain, N nodes of a tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from gistgate.block import Sampling
from gistgate.forward.cache import RowCache


@dataclass(frozen=True)
class Draft:
    """Proposed tokens for each of B rows: a chain, or a tree where `parents` says so."""

    ids: Tensor
    """x_1 .. x_K [B, K], or the tokens of N nodes [B, N]; anything where not valid."""
    valid: Tensor
    """A prefix of True for each row [B, K]; all False where nothing was found."""
    q: Tensor | None = None
    """Processed draft probabilities [B, K, V] when sampling or asked for, those that each token was drawn from; None:
    each proposal counts as certain."""
    forwards: int = 0
    """Forwards of a draft model that this took."""
    parents: Tensor | None = None
    """For each node the number of its parent, which stands before it, or -1 for those that follow the text [B, N].
    None: a chain. Of siblings the first is tried first; sampled ones are drawn independently of each other, those of
    a draft without probabilities differ."""
    notes: Sequence[str] = ()
    """For each row why less was proposed than could have been, or ""; requests count them by these names."""


class Drafter(Protocol):
    """Proposes, and is told afterwards what stayed. One batch at a time: `start` forgets the one before.

    A drafter that learns from the target's rows has `observe(block, acceptance)` as well: it is called after every
    verification, refused and empty proposals included, before `settle` and `select`.

    A drafter that may return trees names the most nodes of one as `nodes`; `num_draft` is the deepest they may be, and
    `uniforms` are `nodes` many. Of a tree it is told what stayed by `settle_path(paths)`, the numbers of the accepted
    nodes of each row, where it has that, and by `settle` with their count where not. `observe` sees the best path.
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
