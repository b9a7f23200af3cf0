"""What everything else talks about: what was drafted, what the target says about it, what stays.

Axis letters: B rows, K drafted tokens, V vocabulary, D width. Row j of the target's logits predicts
the draft token x_j (j counts from 0), row j + 1 comes after reading it, row K is the bonus token's.
`p` is the target, `q` the draft.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from gistgate.core.utils import UserError


class Reason(IntEnum):
    """Why a token is in the output."""

    STRICT = 0  # a draft token that the strict rule accepts, before any loose accept of its block
    LOOSE = 1  # a draft token that the strict rule refuses and the loose rule accepts
    CARRIED = 2  # a strict accept behind a loose accept of the same block
    OWN = 3  # the target's own: the correction after a refusal, or the bonus after a whole block
    LOOP = 4  # a strict accept while the loop guard kept the gate closed; counted as strict


# smallest temperature above 0: logits that are divided by less may leave the range of float32
COLDEST = 1e-6


@dataclass(frozen=True)
class Sampling:
    """How the request wants its tokens drawn; temperature 0 is greedy."""

    temperature: float = 0.0  # temperature of target and draft; 0 takes the most probable token
    top_k: int = 0  # keep only that many most probable tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of tokens with at least this mass; 1 keeps all

    def __post_init__(self) -> None:
        is_warm = self.greedy or COLDEST <= self.temperature < math.inf
        if not (is_warm and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise UserError(
                "Impossible sampling: temperature is 0 or from 1e-06 on, top_k 0 or more, top_p in"
                " (0, 1]."
            )

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    def logits(self, z: Tensor) -> Tensor:
        """Processed logits of `z [..., V]`: temperature, then top-k, then top-p.

        Logits of a greedy request stay as they are.
        """
        if self.greedy:
            return z
        z = z / self.temperature
        if 0 < self.top_k < z.shape[-1]:
            least = z.topk(self.top_k).values[..., -1:]
            z = z.masked_fill(z < least, -torch.inf)
        if self.top_p < 1:
            ordered, index = z.sort(dim=-1, descending=True)
            mass = ordered.softmax(-1)
            is_outside = mass.cumsum(-1) - mass >= self.top_p
            is_outside = is_outside.scatter(-1, index, is_outside)
            z = z.masked_fill(is_outside, -torch.inf)
        return z


@dataclass(frozen=True)
class Draft:
    """Proposed tokens for each of B rows: a chain, or a tree where `parents` says so."""

    ids: Tensor  # x_1 .. x_K [B, K], or the tokens of N nodes [B, N]; anything where not valid
    # A prefix of True for each row [B, K], of a tree the nodes that there are [B, N].
    valid: Tensor
    # Processed probabilities [B, K, V] that tokens were drawn from; None: each token is certain.
    q: Tensor | None = None
    forwards: int = 0  # forwards of a draft model that this took
    parents: Tensor | None = None
    """For each node the number of its parent, which stands before it, or -1 for those that follow
    the text [B, N]. None: a chain. Of siblings the first is tried first; sampled ones are drawn
    independently of each other, those of a draft without probabilities differ."""

    @property
    def width(self) -> int:
        """K or N, tokens of the longest proposal."""
        return self.ids.shape[1]

    @classmethod
    def empty(cls, batch: int, device: torch.device) -> Draft:
        """A draft of no token."""
        ids = torch.zeros(batch, 0, dtype=torch.long, device=device)
        return cls(ids, ids.bool())

    def to(self, device: torch.device) -> Draft:
        """This draft on a device."""
        moved = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                vars(moved)[name] = value.to(device)
        return moved


NOT_BY_ROW = {"protocol", "ends"}  # fields of a block without a leading axis B


@dataclass(frozen=True)
class Block:
    """K drafted tokens for each of B rows, and what one target forward says about them."""

    draft_ids: Tensor  # x, the draft tokens [B, K]
    # False behind the end of a row's draft [B, K]; a prefix of True, but for the nodes of a tree
    valid: Tensor
    # processed target logits z [B, K + 1, V], float32; -inf where the processors forbid a token
    logits: Tensor
    # processed draft probabilities [B, K, V]; None: the drafter has none, each x is certain
    q: Tensor | None = None
    hidden: dict[str, Tensor] = field(default_factory=dict)
    """Target states by layer id ("post", "pre", "layer:2"), each [B, K + 1, D]; only what was asked
    for."""
    # the gate's calibrated probability that x_j keeps the meaning [B, K]; None: no gate
    gate_probs: Tensor | None = None
    # numbers in (0, 1) [B, K + 1], the last for the own token; None: nothing is random
    uniforms: Tensor | None = None
    greedy: bool = True  # True when the request takes the most probable token
    # token ids [P] that steer the protocol (eos, chat markers): always strict
    protocol: Tensor | None = None
    ends: Tensor | None = None  # those of them that end an answer [E]; None where nobody asks
    # rows whose answer begins here [B], bool: its first token is strict; None: no row's
    begins: Tensor | None = None
    # processed target logits [B, K, V] of a second reading, for rules that ask
    second: Tensor | None = None
    # positions that the scope of the request covers [B, K], bool; None: all
    inside: Tensor | None = None
    # positions between the think markers [B, K], bool; only for the rules that ask
    thinking: Tensor | None = None
    # what a round costs each row's request right now, 0 to 1 [B]; None: unknown
    cost: Tensor | None = None
    # nats that each request has spent so far [B]; only for the rule that asks
    spent: Tensor | None = None

    @property
    def width(self) -> int:
        """K, drafted tokens of a row."""
        return self.draft_ids.shape[1]

    def having(self, **fields: Any) -> Self:
        """Return this block with more fields filled.

        The statistics below depend on none of them, and stay known.
        """
        filled = copy(self)
        vars(filled).update(fields)
        return filled

    def of_rows(self, index: Tensor) -> Block:
        """Only these rows, or those of a mask."""
        chosen: dict[str, Any] = {}
        for name in self.__dataclass_fields__.keys() - NOT_BY_ROW:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                chosen[name] = value[index]
            elif isinstance(value, dict):
                chosen[name] = {key: tensor[index] for key, tensor in value.items()}
        return replace(self, **chosen)

    def with_gate(self, gate: Callable[[Block], Tensor]) -> Block:
        """Return this block with `gate_probs` filled by `gate`."""
        return self.having(gate_probs=gate(self))

    @cached_property
    def logprobs(self) -> Tensor:
        """ln p [B, K + 1, V]."""
        return self.logits.log_softmax(-1)

    @cached_property
    def probs(self) -> Tensor:
        """p [B, K + 1, V]."""
        return self.logits.softmax(-1)

    @cached_property
    def top_ids(self) -> Tensor:
        """t*, the target's most probable token of every row [B, K + 1]."""
        return self.logits.argmax(-1)

    @cached_property
    def match(self) -> Tensor:
        """m: x_j is the target's most probable token [B, K]; False where not valid."""
        return (self.draft_ids == self.top_ids[:, :-1]) & self.valid

    @cached_property
    def strict(self) -> Tensor:
        """What the lossless rule accepts [B, K]: the match when greedy, else u <= p(x) / q(x)
        (arXiv 2211.17192).
        """
        if self.greedy:
            return self.match
        p_x = self.draft_logprob.exp()
        return (self.tests * self.draft_q <= p_x) & (p_x > 0) & self.valid

    @property
    def refused(self) -> Tensor:
        """Draft tokens that the lossless rule refuses [B, K]."""
        return self.valid & ~self.strict

    @property
    def tests(self) -> Tensor:
        """u, the numbers in (0, 1) by which draft tokens are accepted [B, K]."""
        assert self.uniforms is not None
        return self.uniforms[:, :-1]

    @property
    def second_tests(self) -> Tensor:
        """Numbers [B, K] for a test besides the lossless one: behind a refusal u is no longer
        uniform, but the fractional part of a multiple of u nearly is.
        """
        return (self.tests * 4096.0) % 1.0

    def draw(self, weights: Tensor) -> Tensor:
        """The own token of each row, drawn from unnormalised `weights [B, V]`."""
        assert self.uniforms is not None
        return draw(weights, self.uniforms[:, -1])

    @property
    def places(self) -> Tensor:
        """The places of the drafted tokens, from 0 [K]."""
        return torch.arange(self.width, device=self.draft_ids.device)

    @property
    def first(self) -> Tensor | None:
        """First tokens of answers [B, K], bool; None where no answer begins."""
        return None if self.begins is None else self.begins[:, None] & (self.places == 0)

    @property
    def fine(self) -> Tensor:
        """P(fine), the gate's probability that x_j keeps the meaning [B, K]."""
        assert self.gate_probs is not None, "a decoder with such a rule has a gate"
        return self.gate_probs

    @property
    def harm(self) -> Tensor:
        """P(harm), the probability that x_j changes the meaning [B, K]."""
        return 1 - self.fine

    @cached_property
    def draft_q(self) -> Tensor:
        """q(x_j) [B, K]; 1 without draft probabilities."""
        if self.q is None:
            return torch.ones_like(self.draft_logprob)
        return of_tokens(self.q, self.draft_ids)

    @cached_property
    def draft_logprob(self) -> Tensor:
        """ln p(x_j) [B, K]."""
        return of_tokens(self.logprobs[:, :-1], self.draft_ids)

    @cached_property
    def top_logprob(self) -> Tensor:
        """ln p(t*) of every row [B, K + 1]."""
        return of_tokens(self.logprobs, self.top_ids)

    @property
    def log_ratio(self) -> Tensor:
        """ln p(x_j) - ln p(t*_j) [B, K]."""
        return self.draft_logprob - self.top_logprob[:, :-1]

    @cached_property
    def draft_logit(self) -> Tensor:
        """z(x_j) [B, K]; -inf where x_j is forbidden."""
        return of_tokens(self.logits[:, :-1], self.draft_ids)

    @cached_property
    def draft_rank(self) -> Tensor:
        """Number of tokens that the target finds more probable than x_j [B, K]; 0 for a match."""
        return (self.logits[:, :-1] > self.draft_logit[..., None]).sum(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """H(p) of every row in nats [B, K + 1]."""
        return entropy_of(self.logprobs)

    @cached_property
    def entropy3(self) -> Tensor:
        """E3(p) = -sum p ln p over the three largest entries, not renormalised [B, K + 1]."""
        num = min(3, self.logprobs.shape[-1])
        return entropy_of(self.logprobs.topk(num).values)


def of_tokens(values: Tensor, ids: Tensor) -> Tensor:
    """Of `values [..., V]` those of the tokens `ids [...]`."""
    return values.gather(-1, ids[..., None]).squeeze(-1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """One index per row of unnormalised `weights [..., V]` for `uniform [...]` in (0, 1), by
    inverse transform.
    """
    mass = weights.double().cumsum(-1)
    drawn = uniform.double() * mass[..., -1]
    index = torch.searchsorted(mass, drawn[..., None], right=True).squeeze(-1)
    return index.clamp_max(weights.shape[-1] - 1)


def entropy_of(logprobs: Tensor) -> Tensor:
    """-sum p ln p over the last axis of ln p `[..., N]`, with 0 ln 0 = 0."""
    finite = logprobs.clamp_min(torch.finfo(logprobs.dtype).min)
    return -(logprobs.exp() * finite).sum(-1)


@dataclass(frozen=True)
class Acceptance:
    """The longest accepted prefix of every row, and the target's own token behind it."""

    length: Tensor  # accepted draft tokens of every row, 0..K [B]
    # the target's own token [B]: the correction at the first refusal, or the bonus token
    own_ids: Tensor
    reasons: Tensor  # reason of every accepted position [B, K]; meaningless behind `length`
