"""One verification call of vLLM as a Block whose statistics are computed on flat, ragged rows: a
padded [B, K, V] would cost gigabytes, so only results are padded.

Axis letters: N flat rows, B requests, K drafted tokens, R = K + 1, V vocabulary, D width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Block, entropy_of

CHUNK = 1 << 24
"""Logits that are looked at together."""
LIFT = 1e4
"""How far a forced logit lies above its row: p(x) is 1, and the number still fits float16."""


@dataclass(frozen=True)
class Rows:
    """Flat rows of a call, and where they stand in the padded block."""

    logits: Tensor
    """vLLM's processed target logits, [N, V] in its own dtype; never copied as a whole."""
    judged: Tensor
    """The draft token that each row judges [N]; below 0 it is none."""
    places: Tensor
    """Row of each position [B, R]; behind a draft's end a row that exists."""
    drafted: Tensor
    """Positions within a draft [B, K]."""
    hidden: Tensor | None
    """States of the padded block [B, R, D]; None where vLLM shows none."""
    params: dict[str, Any]
    """Sampling parameters of the requests of the batch, in order, by their ids."""
    greedy: Tensor
    """Requests that take the most probable token [B]."""
    has_greedy: bool
    """Whether there is one of them."""
    has_sampled: bool
    """Whether there is another request."""
    read: Tensor
    """The token that stood before each draft [B]."""
    at: Tensor
    """Its place in the text [B]."""
    text: Callable[[int], tuple[Sequence[int], Sequence[int]]]
    """Prompt and answer of a request of the batch, as the model runner knows them; -1 is a token
    not yet fetched.
    """
    draft_probs: Callable[[Tensor], Tensor] | None = None
    """q [n, V] of flat rows [n]; None when the drafter names no probabilities."""
    tail: Callable[[], Tensor] | None = None
    """Logits of the bonus rows [B, V], the last of `places`, if not in `logits`."""

    @cached_property
    def ids(self) -> Tensor:
        """`judged` as indices [N]."""
        return self.judged.clamp_min(0)

    @cached_property
    def draft_places(self) -> Tensor:
        """Flat row of each draft token [B, K]."""
        return self.places[:, :-1].clamp_max(len(self.judged) - 1)

    @cached_property
    def valid(self) -> Tensor:
        """Which positions hold a draft token [B, K]."""
        is_token_BK = self.judged[self.draft_places] >= 0
        return (self.drafted & is_token_BK).cumprod(1).bool()

    def column(self, values: Sequence[Any]) -> Tensor:
        """A number or truth value for each request [B]."""
        return torch.tensor(values, device=self.judged.device)

    def each(
        self,
        function: Callable[..., Tensor],
        *more_N: Tensor,
    ) -> Tensor:
        """`function(logits [n, V] in float32, ...)` for all flat rows, a few at a time [N]."""
        size = max(1, CHUNK // self.logits.shape[-1])
        columns = [column.split(size) for column in more_N]
        parts = zip(self.logits.split(size), *columns)
        return torch.cat([function(z.float(), *part) for z, *part in parts])

    def of_draft(
        self,
        function: Callable[..., Tensor],
        *more_N: Tensor,
    ) -> Tensor:
        """A statistic of every draft token [B, K]: `function(logits [n, V], ids [n, 1], ...)`."""
        return self.each(function, self.ids[:, None], *more_N)[self.draft_places]

    @contextmanager
    def forced(self, mask_BK: Tensor) -> Iterator[None]:
        """Lift the logits of chosen draft tokens while the block runs, so that vLLM's own test
        accepts them.
        """
        # In place, since a copy would double the memory, and restored, since vLLM reads
        # log-probabilities afterwards. Padding repeats rows, but its mask is False.
        count_N = torch.zeros_like(self.ids, dtype=torch.int32)
        count_N.index_add_(0, self.draft_places.flatten(), mask_BK.flatten().int())
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
    with_tail: bool = False
    """Whether the rows behind the drafts are needed; else their statistics are copies of others."""

    def padded(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A statistic of every row [B, K + 1]."""
        values_N = self.rows.each(function)
        if self.rows.tail is not None:
            tail_B = values_N[:1].expand(len(self.draft_ids))
            if self.with_tail:
                tail_B = function(self.rows.tail().float())
            values_N = torch.cat([values_N, tail_B])
        return values_N[self.rows.places]

    @property
    def strict(self) -> Tensor:
        return self.match if self.greedy else torch.zeros_like(self.match)

    @cached_property
    def draft_q(self) -> Tensor:
        draft_probs = self.rows.draft_probs
        if draft_probs is None:
            return torch.ones_like(self.draft_logit)

        def q_of_draft(
            _: Tensor,
            x_n1: Tensor,
            row_n: Tensor,
        ) -> Tensor:
            return draft_probs(row_n).gather(-1, x_n1).squeeze(-1)

        at_N = torch.arange(len(self.rows.ids), device=self.rows.ids.device)
        return self.rows.of_draft(q_of_draft, at_N)

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
        return self.rows.of_draft(lambda z, x: z.gather(-1, x).squeeze(-1))

    @cached_property
    def draft_logprob(self) -> Tensor:
        return self.draft_logit - self.normaliser[:, :-1]

    @cached_property
    def draft_rank(self) -> Tensor:
        return self.rows.of_draft(lambda z, x: (z > z.gather(-1, x)).sum(-1))

    @cached_property
    def entropy(self) -> Tensor:
        return self.padded(lambda z: entropy_of(z.log_softmax(-1)))

    @cached_property
    def entropy3(self) -> Tensor:
        def statistic(z: Tensor) -> Tensor:
            best = z.topk(min(3, z.shape[-1])).values
            return entropy_of(best - z.logsumexp(-1, keepdim=True))

        return self.padded(statistic)
