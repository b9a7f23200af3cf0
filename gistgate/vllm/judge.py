"""One verification call of vLLM as a Block whose statistics are computed on flat rows.

vLLM's rows are ragged: request i has K_i drafted tokens. A padded [B, K, V] would cost gigabytes, so every statistic is
computed row by row, a few rows at a time, and only the results are padded.

Axis letters: N flat rows, B requests, K drafted tokens, R = K + 1, V vocabulary, D width.
"""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Block, entropy_of
from gistgate.core.rule import Rule, allowed
from gistgate.core.utils import UserError
from gistgate.rules.divergence import Ensemble
from gistgate.vllm.policy import KEY, MARK, Policy

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


# ---- What each request asked for, and a slot for what is counted and remembered about it.


log = logging.getLogger("vllm.gistgate")

NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0, "logit_bias": {},
    "bad_words": [], "allowed_token_ids": [], "structured_outputs": None,
}  # fmt: skip
"""Sampling parameters that change which token is the most probable one, with the value at which they do not."""
MOST = 2**53
"""Largest whole number of a wish: floating-point numbers hold all below it exactly."""
SPARE = 1024
"""Requests whose counts are kept after they have ended."""


@dataclass
class Entry:
    """A request that was met."""

    slot: int
    params: Any
    """Its sampling parameters; an id that comes back with others is another request."""
    rule: Rule | None
    """What judges it; None is strict."""


class Requests:
    """Known requests by id; those met longest ago are forgotten."""

    def __init__(
        self,
        rule: Rule,
        capacity: int,
        forget: Callable[[int], None] = lambda slot: None,
        covered_only: bool = False,
    ) -> None:
        """`covered_only` verifies strictly what a certificate cannot cover."""
        self.rule, self.covered_only, self.warned = rule, covered_only, False
        self.entries: OrderedDict[str, Entry] = OrderedDict()
        self.capacity = capacity
        self.forget = forget
        """Called with a slot that is given to another request."""

    def find(self, ids: Sequence[str], params: Callable[[str], Any]) -> list[Entry]:
        """The entries of a batch."""
        return [self._find(name, params(name)) for name in ids]

    def _find(self, name: str, params: Any) -> Entry:
        entry = self.entries.get(name)
        if entry is None or entry.params is not params:
            is_covered = not self.covered_only or leaves_logits(params)
            if not is_covered and not self.warned:
                self.warned = True
                log.warning(
                    "gistgate: requests with a penalty, a bias, banned or allowed words, a least length or a grammar "
                    "are verified strictly, because no certificate covers them. If nobody asked for one, the model's "
                    "generation_config.json does: start the server with --generation-config vllm."
                )
            rule = wished_rule(self.rule, getattr(params, "extra_args", None)) if is_covered else None
            entry = Entry(self._slot(name), params, rule)
            self.entries[name] = entry
        self.entries.move_to_end(name)
        return entry

    def _slot(self, name: str) -> int:
        if name in self.entries:
            slot = self.entries.pop(name).slot
        elif len(self.entries) < self.capacity:
            slot = len(self.entries)
        else:
            slot = self.entries.popitem(last=False)[1].slot
        self.forget(slot)
        return slot


def leaves_logits(params: Any) -> bool:
    """Whether a request's most probable tokens are the model's own: certificates are made without penalties."""
    return all(getattr(params, name, neutral) in (None, neutral) for name, neutral in NEUTRAL.items())


def wished_rule(rule: Rule, extra: Mapping[str, Any] | None) -> Rule | None:
    """The server's rule, a stricter one, or None (strict), as a request wishes.

    A wish that cannot be understood is granted strictly: an answer that is too good does no harm.
    """
    wish = (extra or {}).get(KEY)
    if wish is None:
        return rule
    try:
        wish = read_wish(wish)
        if wish.pop("strict", False):
            return None
        return stricter(rule, wish)
    except (ValueError, TypeError, UserError, OverflowError, RecursionError) as error:  # whatever a client may send
        log.warning("gistgate: a request is verified strictly, because its wish was not understood (%s).", error)
        return None


def read_wish(value: Any) -> dict[str, Any]:
    """A wish as a mapping. Over HTTP only texts and numbers arrive, so it may be JSON text or the word "strict".

    Raises:
        ValueError: it is something else.
    """
    if value == "strict":
        return {"strict": True}
    wish = json.loads(value) if isinstance(value, str) else value
    if not isinstance(wish, Mapping) or not isinstance(wish.get("strict", False), bool):
        raise ValueError(f"{value!r} is no object with 'strict' or a setting")
    return dict(wish)


def stricter(rule: Rule, wish: dict[str, Any]) -> Rule:
    """The rule at the stricter of two settings: the server's and the one that is wished.

    Raises:
        ValueError: the wish names something else than the knob, or no number.
    """
    if not wish:
        return rule
    knob = rule.knob
    if knob is None or set(wish) != {knob}:
        raise ValueError(f"the only setting that a request can change is '{knob}'")
    value, current = wish[knob], getattr(rule, knob)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"'{knob}' is {value!r}, which is no number")
    if isinstance(value, int) and abs(value) > MOST:  # torch compares no tensor with it, and the engine would end
        raise ValueError(f"'{knob}' is {value!r}, which is too large")
    kept = min(value, current) if rule.looser == "up" else max(value, current)
    changed: Rule = rule.changed(**{knob: kept})
    return changed


# ---- What was drafted, accepted and accepted loosely, per request and in all; kept on the device, read on request.


NAMES = ("blocks", "drafted", "accepted", "loose", "carried", "expected_loose", "guarded")
"""Counters: rounds with a draft, drafted tokens, accepted ones, those that the strict test refuses (greedy requests),
strict ones behind a loose one, the expected number of loose ones (sampled requests, where the native verdict cannot be
seen), and rounds in which the loop guard kept the gate closed."""


class Counters:
    """A row of counters per slot, and their sums."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots_SC = torch.zeros(slots, len(NAMES), dtype=torch.float32, device=device)
        self.total_C = torch.zeros(len(NAMES), dtype=torch.float64, device="cpu" if device.type == "mps" else device)

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.slots_SC[slot] = 0

    def add(self, slots_B: Tensor, counts_BC: Tensor) -> None:
        """Add what one round brought."""
        self.slots_SC.index_add_(0, slots_B, counts_BC.float())
        self.total_C += counts_BC.double().sum(0)

    def total(self) -> dict[str, float]:
        """All requests together; waits for the device."""
        return dict(zip(NAMES, self.total_C.tolist(), strict=True))

    def of(self, slot: int) -> dict[str, float]:
        """One request; waits for the device."""
        return dict(zip(NAMES, self.slots_SC[slot].tolist(), strict=True))


def count(
    valid_BK: Tensor, match_BK: Tensor, forced_BK: Tensor, strict_share_BK: Tensor, greedy_B: Tensor, length_B: Tensor,
    closed_B: Tensor,
) -> Tensor:  # fmt: skip
    """The counters of one round [B, C]; only what was accepted counts, `length_B` tokens of each request.

    `strict_share_BK` is the probability with which the strict test would have accepted, for sampled requests.
    """
    places_K = torch.arange(valid_BK.shape[1], device=valid_BK.device)
    stays_BK = (places_K < length_B[:, None]) & valid_BK
    greedy_B1 = greedy_B[:, None]
    loose_BK = stays_BK & ~match_BK & greedy_B1
    carried_BK = stays_BK & match_BK & greedy_B1 & (loose_BK.cumsum(1) > 0)
    # Padding may hold NaN (0 - 0 times infinity), so it is chosen away and not multiplied away.
    expected_BK = torch.where(stays_BK & forced_BK & ~greedy_B1, 1 - strict_share_BK.clamp_max(1), 0.0)
    drafted_B = valid_BK.sum(1)
    columns = (
        drafted_B > 0, drafted_B, stays_BK.sum(1), loose_BK.sum(1), carried_BK.sum(1), expected_BK.sum(1),
        closed_B & (drafted_B > 0),
    )  # fmt: skip
    return torch.stack([column.double() for column in columns], dim=-1)


# ---- The loop guard on the device: loops are easy to draft, so broken output would look fastest.


class DeviceLoopGuard:
    """Remembers the last tokens of each slot; nothing waits for the host."""

    def __init__(self, slots: int, device: torch.device, period: int = 64, repeats: int = 4, window: int = 128) -> None:
        self.period, self.repeats, self.window = period, repeats, window
        self.tail_SL = torch.full((slots, period * repeats), -1, dtype=torch.long, device=device)
        self.closed_S = torch.zeros(slots, dtype=torch.long, device=device)
        """Tokens for which each slot stays closed."""
        self.loose_S = torch.zeros(slots, dtype=torch.bool, device=device)

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.tail_SL[slot], self.closed_S[slot], self.loose_S[slot] = -1, 0, False

    def closed(self, slots_B: Tensor) -> Tensor:
        """Requests whose gate is closed [B]."""
        return self.closed_S[slots_B] > 0

    def saw(self, slots_B: Tensor, read_B: Tensor | None, written_BR: Tensor, loose_B: Tensor) -> None:
        """Take note of a round: the token before the draft, what was written (-1 behind its end), if loosely."""
        tail_BL, written_BR = self.tail_SL[slots_B], written_BR.long()
        if read_B is not None:  # a step without drafts wrote it, unless it is known
            fresh_B = torch.where(read_B.long() == tail_BL[:, -1], -1, read_B.long())
            written_BR = torch.cat([fresh_B[:, None], written_BR], dim=1)
        text_BE = torch.cat([tail_BL, written_BR], dim=1)
        text_BE = text_BE.gather(1, (text_BE >= 0).int().argsort(dim=1, stable=True))
        new_B = (written_BR >= 0).sum(1)
        loose_B = loose_B | self.loose_S[slots_B]
        alarm_B = self.loops(text_BE, new_B) & loose_B
        self.tail_SL[slots_B] = text_BE[:, -tail_BL.shape[1] :]
        self.loose_S[slots_B] = loose_B & ~alarm_B
        left_B = (self.closed_S[slots_B] - new_B).clamp_min(0)
        self.closed_S[slots_B] = torch.where(alarm_B, self.window, left_B)

    def loops(self, text_BE: Tensor, new_B: Tensor) -> Tensor:
        """Whether the text was a loop at one of its last `new_B` ends [B]; -1 is no token."""
        size = text_BE.shape[1]
        at_E = torch.arange(size, device=text_BE.device)
        period_P1 = torch.arange(1, self.period + 1, device=text_BE.device)[:, None]
        before_PE = at_E - period_P1
        earlier_BPE = text_BE[:, before_PE.clamp_min(0)]
        same_BPE = (earlier_BPE == text_BE[:, None]) & (before_PE >= 0) & (earlier_BPE >= 0)
        broken_BPE = torch.where(same_BPE, -1, at_E).cummax(-1).values
        stands_BPE = at_E - broken_BPE >= period_P1 * (self.repeats - 1)
        is_new_BE = at_E >= size - new_B[:, None]
        return (stands_BPE.any(1) & is_new_BE).any(1)


# ---- The verdict on one verification call: which draft tokens vLLM's own test has to accept.


class Judge:
    """Applies a policy to the calls of one worker, and counts."""

    def __init__(
        self,
        policy: Policy,
        protected: tuple[int, ...],
        max_requests: int,
        device: torch.device,
        loop_guard: bool = True,
        share: Callable[[Tensor], Tensor] = lambda mask: mask,
    ) -> None:
        """`share` makes the ranks of a tensor-parallel group agree on a mask."""
        if policy.rule is None:
            raise ValueError("A strict policy needs no judge.")
        slots = max_requests + SPARE
        self.policy, self.share = policy, share
        self.protected = torch.tensor(protected, dtype=torch.long, device=device)
        self.counters = Counters(slots, device)
        self.guard = DeviceLoopGuard(slots, device) if loop_guard else None
        self.requests = Requests(policy.rule, slots, self._forget, policy.covered_only)
        gate = policy.gate
        self.tail = gate is not None and "scalars" in gate.features

    def _forget(self, slot: int) -> None:
        self.counters.forget(slot)
        if self.guard is not None:
            self.guard.forget(slot)

    def verdict(self, rows: Rows, valid_BK: Tensor, hidden_BRD: Tensor | None, params: Callable[[str], Any]) -> Verdict:
        """What to force in a call; `params` gives the sampling parameters of a request id."""
        entries = self.requests.find(rows.request_ids, params)
        device = valid_BK.device
        slots_B = torch.tensor([entry.slot for entry in entries], device=device)
        block = make_block(rows, valid_BK, hidden_BRD, self.protected, self.tail)
        if self.policy.gate is not None:
            object.__setattr__(block, "gate_probs", self.policy.gate(block))
        mask_BK = torch.zeros_like(valid_BK)
        for rule in {entry.rule for entry in entries if entry.rule is not None}:
            own_B = torch.tensor([entry.rule == rule for entry in entries], device=device)
            mask_BK |= self.opinion(rule, block, rows) & own_B[:, None]
        closed_B = torch.zeros_like(slots_B, dtype=torch.bool) if self.guard is None else self.guard.closed(slots_B)
        mask_BK = self.share(mask_BK & allowed(block) & ~closed_B[:, None])
        return Verdict(self, rows, block, slots_B, closed_B, mask_BK)

    def opinion(self, rule: Rule, block: RowBlock, rows: Rows) -> Tensor:
        """What a rule accepts [B, K]; sampled requests only where the policy judges them."""
        mask_BK = torch.zeros_like(block.valid)
        if not rows.all_sampled:
            mask_BK |= ask(rule, block.with_greedy(True)) & rows.greedy[:, None]
        if self.policy.sampled and not rows.all_greedy:
            mask_BK |= ask(rule, block.with_greedy(False)) & ~rows.greedy[:, None]
        return mask_BK


class Verdict:
    """What one call has to accept, and the bookkeeping behind it."""

    def __init__(
        self, judge: Judge, rows: Rows, block: RowBlock, slots_B: Tensor, closed_B: Tensor, mask_BK: Tensor
    ) -> None:
        self.judge, self.rows, self.block = judge, rows, block
        self.slots_B, self.closed_B, self.mask_BK = slots_B, closed_B, mask_BK
        # Known before the logits are changed; only sampled rows need a probability.
        self.match_BK = block.match
        self.share_BK = (
            torch.ones_like(mask_BK, dtype=torch.float32)
            if rows.all_greedy
            else (block.draft_logprob.exp() / block.draft_q).nan_to_num(1.0)
        )

    def settle(self, length_B: Tensor, written_BR: Tensor) -> None:
        """Count what was accepted and written; `written_BR` is -1 behind each request's last token."""
        counts_BC = count(
            self.block.valid, self.match_BK, self.mask_BK, self.share_BK, self.rows.greedy, length_B, self.closed_B
        )
        self.judge.counters.add(self.slots_B, counts_BC)
        if self.judge.guard is not None:
            loose_B = (counts_BC[:, 3] > 0) | (counts_BC[:, 5] > 0)
            self.judge.guard.saw(self.slots_B, self.rows.read, written_BR, loose_B)


def ask(rule: Rule, block: RowBlock) -> Tensor:
    """What a rule accepts [B, K]."""
    return ensemble(rule, block) if isinstance(rule, Ensemble) else rule.accept(block, {})


def ensemble(rule: Ensemble, block: RowBlock) -> Tensor:
    """The ensemble rule on flat rows [B, K], the one rule here that needs the drafter's whole distribution.

    Greedy: x is the argmax of w p + (1 - w) q; where vLLM shows no draft logits, nothing. Sampled: the native test
    accepts with min(1, p / q). Forcing each token with probability 1 - w on top makes that min(1, 1 - w + w p / q),
    which is the rule, and the native residual draw completes the mixture (arXiv 2604.07622).
    """
    rows = block.rows
    assert rows is not None
    if rule.w == 1:
        return torch.zeros_like(block.valid)
    if not block.greedy:
        return torch.rand(block.valid.shape, device=block.valid.device) < 1 - rule.w
    logits_of = rows.draft_logits
    if logits_of is None:
        return torch.zeros_like(block.valid)

    def favourite(z: Tensor, row_N: Tensor) -> Tensor:
        q = logits_of(row_N).float().softmax(-1)
        return rule.favourite(z, z.softmax(-1), F.pad(q, (0, z.shape[-1] - q.shape[-1])))

    best_N = rows.each(favourite, torch.arange(len(rows.ids), device=rows.ids.device))
    return best_N[rows.places[:, :-1]] == block.draft_ids


# ---- Make vLLM's own test accept chosen draft tokens, and leave its tensors as they were.


LIFT = 1e4
"""How far a forced logit lies above its row: p(x) is 1, and the number still fits float16."""


@contextmanager
def forced(logits_NV: Tensor, ids_N: Tensor, chosen_N: Tensor) -> Iterator[None]:
    """Lift the logit of the draft token in the chosen rows while the block runs.

    A copy of the logits would cost as much memory as they do, so one column is changed in place and restored. vLLM
    reads the same tensor afterwards for log-probabilities.
    """
    ids_N1 = ids_N[:, None]
    old_N1 = logits_NV.gather(-1, ids_N1)
    lifted_N1 = logits_NV.amax(-1, keepdim=True) + LIFT
    logits_NV.scatter_(-1, ids_N1, torch.where(chosen_N[:, None], lifted_N1, old_N1))
    try:
        yield
    finally:
        logits_NV.scatter_(-1, ids_N1, old_N1)


def flat(mask_BK: Tensor, place_BR: Tensor, num: int) -> Tensor:
    """A padded mask as a mask of flat rows [num]. Padding repeats rows, but its mask is False."""
    count_N = torch.zeros(num, dtype=torch.int32, device=mask_BK.device)
    places = place_BR[:, :-1].reshape(-1).clamp_max(num - 1)
    return count_N.index_add_(0, places, mask_BK.reshape(-1).int()) > 0


# ---- What both of vLLM's model runners need to be hooked: who is calling, and one wrapper per function.


CALL: ContextVar[Any] = ContextVar("gistgate_call", default=None)
"""The step of the engine that runs now; None outside, as in profiling and warm-up."""


@contextmanager
def during(call: Any) -> Iterator[None]:
    """Let the wrapped `rejection_sample` find this step."""
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)


def wrap_once(module: Any, verify: Callable[..., Any]) -> None:
    """Replace `module.rejection_sample`, once per process: `verify(call, native, *arguments)` judges inside a step."""
    native = module.rejection_sample
    if hasattr(native, MARK):
        return

    @wraps(native)
    def rejection_sample(*arguments: Any, **options: Any) -> Any:
        call = CALL.get()
        if call is None:
            return native(*arguments, **options)
        return verify(call, native, *arguments, **options)

    setattr(rejection_sample, MARK, True)
    module.rejection_sample = rejection_sample


def run_native(verdict: Verdict, native: Callable[[], Any]) -> Any:
    """vLLM's own test, with the chosen tokens forced."""
    rows = verdict.rows
    chosen_N = flat(verdict.mask_BK, rows.places, len(rows.ids))
    with forced(rows.logits, rows.ids, chosen_N):
        return native()
