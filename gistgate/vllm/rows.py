"""One verification call of vLLM as a Block whose statistics are computed on flat, ragged rows: a
padded [B, K, V] would cost gigabytes, so only results are padded.

Axis letters: N flat rows, B requests, K drafted tokens, R = K + 1, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gistgate.core.block import Block, entropy_of

CHUNK = 1 << 24  # logits that are looked at together
LIFT = (
    1e4  # how far a forced logit lies above its row: p(x) is 1, and the number still fits float16
)


@dataclass(frozen=True)
class Rows:
    """Flat rows of a call, and where they stand in the padded block."""

    logits: (
        Tensor  # vLLM's processed target logits, [N, V] in its own dtype; never copied as a whole
    )
    ids: Tensor  # the draft token that each row judges [N], 0 or more
    places: Tensor  # row of each position [B, R]; behind a draft's end a row that exists
    request_ids: list[str]  # requests of the batch, in order
    greedy: Tensor  # requests that take the most probable token [B]
    all_greedy: bool
    all_sampled: bool
    tail: Callable[[], Tensor] | None = (
        None  # logits of the bonus rows [B, V], the last of `places`, if not in logits
    )
    draft_q: Callable[[], Tensor] | None = (
        None  # q(x_j) [B, K]; None when the drafter names no probabilities
    )
    draft_logits: Callable[[Tensor], Tensor] | None = (
        None  # draft logits [n, V] of flat rows [n], where shown
    )
    read: Tensor | None = None  # the token that stood before each draft [B]
    at: Tensor | None = (
        None  # and its place in the text [B]; both are asked for where a request has a scope
    )
    text: Callable[[int], tuple[Sequence[int], Sequence[int]]] = lambda number: ((), ())
    """Prompt and answer of a request of the batch, as the model runner knows them; -1 is a token
    not yet fetched.
    """

    @cached_property
    def draft_places(self) -> Tensor:
        """Flat row of each draft token [B, K]."""
        return self.places[:, :-1].clamp_max(len(self.ids) - 1)

    def each(self, function: Callable[..., Tensor], *more_N: Tensor) -> Tensor:
        """`function(logits [n, V] in float32, ...)` for all flat rows, a few at a time [N]."""
        size = max(1, CHUNK // self.logits.shape[-1])
        parts = zip(
            self.logits.split(size), *(column.split(size) for column in more_N), strict=True
        )
        return torch.cat([function(z.float(), *columns) for z, *columns in parts])

    @contextmanager
    def forced(self, mask_BK: Tensor) -> Iterator[None]:
        """Lift the logits of chosen draft tokens while the block runs, so that vLLM's own test
        accepts them.
        """
        # In place, since a copy would double the memory, and restored, since vLLM reads
        # log-probabilities afterwards. Padding repeats rows, but its mask is False.
        count_N = torch.zeros(len(self.ids), dtype=torch.int32, device=mask_BK.device)
        count_N.index_add_(0, self.draft_places.reshape(-1), mask_BK.reshape(-1).int())
        ids_N1 = self.ids[:, None]
        old_N1 = self.logits.gather(-1, ids_N1)
        lifted_N1 = self.logits.amax(-1, keepdim=True) + LIFT
        self.logits.scatter_(-1, ids_N1, torch.where(count_N[:, None] > 0, lifted_N1, old_N1))
        try:
            yield
        finally:
            self.logits.scatter_(-1, ids_N1, old_N1)


@dataclass(frozen=True)
class RowBlock(Block):
    """A Block over flat rows. `logits` has the right shape and no values (NaN, which closes every
    comparison).

    For a sampled request `strict` is False everywhere: vLLM's kernel decides natively, and nobody
    knows how before.
    """

    rows: Rows = field(kw_only=True)
    # whether the rows behind the drafts are needed; else their statistics are copies of others
    with_tail: bool = False

    def padded(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A statistic of every row [B, K + 1]."""
        found_N = self.rows.each(function)
        if self.rows.tail is not None:
            size = len(self.draft_ids)
            tail_B = (
                function(self.rows.tail().float()) if self.with_tail else found_N[:1].expand(size)
            )
            found_N = torch.cat([found_N, tail_B])
        return found_N[self.rows.places]

    def of_draft(self, function: Callable[..., Tensor]) -> Tensor:
        """A statistic of every draft token [B, K]: `function(logits [n, V], ids [n, 1])`."""
        return self.rows.each(function, self.rows.ids[:, None])[self.rows.draft_places]

    @property
    def strict(self) -> Tensor:
        return self.match if self.greedy else torch.zeros_like(self.match)

    @cached_property
    def draft_q(self) -> Tensor:
        return (
            torch.ones_like(self.draft_logit) if self.rows.draft_q is None else self.rows.draft_q()
        )

    normaliser = cached_property(lambda self: self.padded(lambda z: z.logsumexp(-1)))
    """ln of the sum of exp z of every row [B, K + 1]."""
    top_ids = cached_property(lambda self: self.padded(lambda z: z.argmax(-1)))
    top_logprob = cached_property(lambda self: self.padded(lambda z: z.amax(-1)) - self.normaliser)
    draft_logit = cached_property(
        lambda self: self.of_draft(lambda z, x: z.gather(-1, x).squeeze(-1))
    )
    draft_logprob = cached_property(lambda self: self.draft_logit - self.normaliser[:, :-1])
    draft_rank = cached_property(
        lambda self: self.of_draft(lambda z, x: (z > z.gather(-1, x)).sum(-1))
    )
    entropy = cached_property(lambda self: self.padded(lambda z: entropy_of(z.log_softmax(-1))))

    @cached_property
    def entropy3(self) -> Tensor:
        return self.padded(
            lambda z: entropy_of(z.topk(min(3, z.shape[-1])).values - z.logsumexp(-1, keepdim=True))
        )
