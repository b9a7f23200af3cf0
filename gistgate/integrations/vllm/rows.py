"""One verification call of vLLM as a Block whose statistics are computed on flat rows.

vLLM's rows are ragged: request i has K_i drafted tokens. A padded [B, K, V] would cost gigabytes, so every statistic is
computed row by row, a few rows at a time, and only the results are padded.

Axis letters: N flat rows, B requests, K drafted tokens, R = K + 1, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gistgate.block import Block, entropy_of

CHUNK = 1 << 24
"""Logits that are looked at together."""


@dataclass(frozen=True)
class Rows:
    """Flat rows of a call, and where they stand in the padded block."""

    logits: Tensor
    """vLLM's processed target logits, [N, V] in its own dtype; never copied as a whole."""
    ids: Tensor
    """The draft token that each row judges [N], 0 or more."""
    places: Tensor
    """Row of each position [B, R]; behind a draft's end a row that exists."""
    request_ids: list[str]
    """Requests of the batch, in order."""
    greedy: Tensor
    """Requests that take the most probable token [B]."""
    all_greedy: bool
    all_sampled: bool
    tail: Callable[[], Tensor] | None = None
    """Logits of the bonus rows [B, V] where `logits` does not hold them; `places` counts them behind the others."""
    draft_q: Callable[[], Tensor] | None = None
    """q(x_j) [B, K]; None when the drafter names no probabilities."""
    draft_logits: Callable[[Tensor], Tensor] | None = None
    """Draft logits [n, V] that belong to flat rows [n]; None where vLLM does not show them."""
    read: Tensor | None = None
    """The token that stood before each draft [B]."""

    def each(self, function: Callable[..., Tensor], *more_N: Tensor) -> Tensor:
        """`function(logits [n, V] in float32, ...)` for all flat rows, a few at a time [N or N + B]."""
        size = max(1, CHUNK // self.logits.shape[-1])
        parts = zip(self.logits.split(size), *(column.split(size) for column in more_N), strict=True)
        return torch.cat([function(z.float(), *columns) for z, *columns in parts])


@dataclass(frozen=True)
class RowBlock(Block):
    """A Block over flat rows. `logits` has the right shape and no values (NaN, which closes every comparison).

    For a sampled request `strict` is False everywhere: vLLM's kernel decides natively, and nobody knows how before.
    """

    rows: Rows | None = None
    with_tail: bool = False
    """Whether the rows behind the drafts are needed; else their statistics are copies of others."""

    def with_greedy(self, greedy: bool) -> RowBlock:
        """The same block for greedy or sampled requests; the statistics are shared."""
        other = copy(self)
        object.__setattr__(other, "greedy", greedy)
        other.__dict__.pop("strict", None)
        return other

    def padded(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A statistic of every row [B, K + 1]."""
        assert self.rows is not None
        found_N = self.rows.each(function)
        if self.rows.tail is not None:
            size = len(self.draft_ids)
            tail_B = function(self.rows.tail().float()) if self.with_tail else found_N[:1].expand(size)
            found_N = torch.cat([found_N, tail_B])
        return found_N[self.rows.places]

    def of_draft(self, function: Callable[..., Tensor]) -> Tensor:
        """A statistic of every draft token [B, K]: `function(logits [n, V], ids [n, 1])`."""
        assert self.rows is not None
        found_N = self.rows.each(function, self.rows.ids[:, None])
        return found_N[self.rows.places[:, :-1].clamp_max(len(found_N) - 1)]

    @cached_property
    def strict(self) -> Tensor:
        return self.match if self.greedy else torch.zeros_like(self.match)

    @cached_property
    def draft_q(self) -> Tensor:
        assert self.rows is not None
        return torch.ones_like(self.draft_logit) if self.rows.draft_q is None else self.rows.draft_q()

    @cached_property
    def normaliser(self) -> Tensor:
        """ln of the sum of exp z of every row [B, K + 1]."""
        return self.padded(lambda z: z.logsumexp(-1))

    @cached_property
    def top_ids(self) -> Tensor:
        return self.padded(lambda z: z.argmax(-1))

    @cached_property
    def top_logprob(self) -> Tensor:
        return self.padded(lambda z: z.amax(-1)) - self.normaliser

    @cached_property
    def draft_logit(self) -> Tensor:
        return self.of_draft(lambda z, x: z.gather(-1, x).squeeze(-1))

    @cached_property
    def draft_logprob(self) -> Tensor:
        return self.draft_logit - self.normaliser[:, :-1]

    @cached_property
    def draft_rank(self) -> Tensor:
        return self.of_draft(lambda z, x: (z > z.gather(-1, x)).sum(-1))

    @cached_property
    def entropy(self) -> Tensor:
        return self.padded(lambda z: entropy_of(z.log_softmax(-1)))

    @cached_property
    def entropy3(self) -> Tensor:
        return self.padded(lambda z: entropy_of(z.topk(min(3, z.shape[-1])).values - z.logsumexp(-1, keepdim=True)))


def make_block(rows: Rows, valid_BK: Tensor, hidden_BRD: Tensor | None, protected: Tensor, tail: bool) -> RowBlock:
    """The block of a call; `protected` are token ids that stay strict."""
    num_B, num_R = rows.places.shape
    nothing = torch.full((), torch.nan, device=rows.logits.device)
    last = len(rows.ids) - 1
    return RowBlock(
        draft_ids=rows.ids[rows.places[:, :-1].clamp_max(last)],
        valid=valid_BK,
        logits=nothing.expand(num_B, num_R, rows.logits.shape[-1]),
        hidden={} if hidden_BRD is None else {"post": hidden_BRD},
        protocol=protected,
        rows=rows,
        with_tail=tail,
    )
