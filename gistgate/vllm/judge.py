"""The verdict on each verification call of vLLM: what to accept, what was counted, and who asked
for strictness.

Axis letters: B requests, K drafted tokens, R = K + 1, N flat rows, S slots of remembered requests,
    C counters.
"""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.rule import Rule, allowed
from gistgate.core.scopes import ALL, PROSE, SCOPES, THINKING, Reading, Scope
from gistgate.core.utils import UserError
from gistgate.rules.divergence import Ensemble
from gistgate.vllm import KEY, MARK
from gistgate.vllm.policy import Policy
from gistgate.vllm.rows import RowBlock, Rows

log = logging.getLogger("vllm.gistgate")

NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
    "structured_outputs": None,
}
"""Sampling parameters that change which token is the most probable one, with the value at which
they do not.
"""
MOST = 2**53  # largest whole number of a wish: floating-point numbers hold all below it exactly
SPARE = 1024  # requests whose counts are kept after they have ended


@dataclass
class Entry:
    """A request that was met."""

    slot: int  # where its counts and its last tokens stand
    params: Any  # its sampling parameters; an id that comes back with others is another request
    rule: Rule | None  # what judges it; None is strict
    scope: Scope | None = None  # where the rule may judge; None everywhere
    arm: str | None = (
        None  # one of ARMS; None for a request that wishes something and is not compared
    )
    is_new: bool = True  # until its first round was counted
    reading: Reading | None = None  # how far its answer was read
    end: int = 0  # tokens of the answer in front of the draft
    written: dict[int, int] = field(
        default_factory=dict
    )  # tokens of the answer by their place, as far as met here


class Requests:
    """Known requests by id; those met longest ago are forgotten."""

    def __init__(
        self,
        rule: Rule,
        capacity: int,
        forget: Callable[[int], None] = lambda slot: None,
        covered_only: bool = False,
        tokenizer: Any = None,
        shadow: float = 0.0,
        stops: Sequence[str] | None = None,
    ) -> None:
        """`forget` is told a slot that another request gets; `covered_only` and `shadow` are as in
        `Policy`.
        """
        self.shadow = shadow * 2**32
        self.rule = rule
        self.capacity = capacity
        self.forget = forget
        self.covered_only = covered_only
        self.scopes = (
            {}
            if tokenizer is None
            else {name: Scope(name, tokenizer) for name in (PROSE, THINKING)}
        )
        self.warned = False
        self.stops = stops
        self.entries: OrderedDict[str, Entry] = OrderedDict()

    def find(self, name: str, params: Any) -> Entry:
        """The entry of a request with these sampling parameters."""
        entry = self.entries.get(name)
        if entry is None or entry.params is not params:
            if entry is None and len(self.entries) >= self.capacity:
                entry = self.entries.popitem(last=False)[1]
            slot = len(self.entries) if entry is None else entry.slot
            self.forget(slot)
            rule, scope = self._wished(params)
            # The id decides, so that the ranks of a group agree.
            arm = (
                ARMS[crc32(name.encode()) < self.shadow]
                if rule is self.rule and scope is None
                else None
            )
            entry = self.entries[name] = Entry(
                slot, params, None if arm == "shadow" else rule, scope, arm
            )
        self.entries.move_to_end(name)
        return entry

    def _wished(self, params: Any) -> tuple[Rule | None, Scope | None]:
        rule, scope = wished(self.rule, getattr(params, "extra_args", None))
        is_written = scope == PROSE and getattr(params, "structured_outputs", None) is not None
        if is_written or (
            scope != ALL and scope not in self.scopes
        ):  # a grammar writes it, or no text can be read
            return None, None
        return rule if rule is None or self._covers(params) else None, self.scopes.get(scope)

    def _covers(self, params: Any) -> bool:
        # Certificates are made without penalties: the most probable tokens have to be the model's
        # own.
        is_covered = all(
            getattr(params, name, neutral) in (None, neutral) for name, neutral in NEUTRAL.items()
        )
        is_covered &= self.stops is None or {*(getattr(params, "stop", None) or ())} == {
            *self.stops
        }
        if self.covered_only and not is_covered and not self.warned:
            self.warned = True
            log.warning(
                "gistgate: requests with a penalty, a bias, banned or allowed words, a least"
                " length, a grammar or other stops than %s are verified strictly, because no"
                " certificate covers them. If nobody asked for one, the model's"
                " generation_config.json does: start the server with --generation-config vllm.",
                "any" if self.stops is None else list(self.stops),
            )
        return is_covered or not self.covered_only


NONSENSE = (
    ValueError,
    TypeError,
    UserError,
    OverflowError,
    RecursionError,
)  # what comes of what a client may send


def read_wish(extra: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What a request wishes in its `extra_args`: an object, one as JSON, or one word."""
    wish = (extra or {}).get(KEY)
    if wish is None or wish == "strict":
        return {} if wish is None else {"strict": True}
    if wish in SCOPES:
        return {"scope": wish}
    wish = json.loads(wish) if isinstance(wish, str) else wish
    if not isinstance(wish, Mapping) or not isinstance(wish.get("strict", False), bool):
        raise ValueError(f"{wish!r} is no object with 'strict', 'scope' or a setting")
    return wish


def refusal(extra: Mapping[str, Any] | None) -> str:
    """Why a request cannot run: its scope does not exist; what else is not understood is strict."""
    with suppress(*NONSENSE):
        if (scope := read_wish(extra).get("scope", ALL)) not in SCOPES:
            return f"There is no scope '{str(scope)[:60]}'. Known: {', '.join(SCOPES)}."
    return ""


def wished(rule: Rule, extra: Mapping[str, Any] | None) -> tuple[Rule | None, str]:
    """The server's rule, a stricter one, or None (strict, also for nonsense), and the scope that a
    request wishes.
    """
    try:
        if sentence := refusal(extra):
            raise ValueError(sentence)
        wish = dict(read_wish(extra))
        scope = wish.pop("scope", ALL)
        is_strict = wish.pop("strict", False)
        return None if is_strict else stricter(rule, wish), scope
    except NONSENSE as error:
        log.warning(
            "gistgate: a request is verified strictly, because its wish was not understood (%s).",
            error,
        )
        return None, ALL


def stricter(rule: Rule, wish: dict[str, Any]) -> Rule:
    """The rule at the stricter of two settings, the server's and the wished one; ValueError says
    what is no setting.
    """
    if not wish:
        return rule
    knob = rule.knob
    if knob is None or set(wish) != {knob}:
        raise ValueError(f"the only setting that a request can change is '{knob}'")
    value = wish[knob]
    current = getattr(rule, knob)
    is_number = (
        isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    )
    if not is_number or (
        isinstance(value, int) and abs(value) > MOST
    ):  # torch compares no tensor with that
        raise ValueError(f"'{knob}' is {value!r}, which is no number or which is too large")
    changed: Rule = rule.changed(
        **{knob: min(value, current) if rule.looser == "up" else max(value, current)}
    )
    return changed


ARMS = (
    "plain",
    "shadow",
)  # requests that wish nothing: those that the server's rule judges, and strict ones beside
NAMES = (
    "blocks",
    "drafted",
    "accepted",
    "loose",
    "carried",
    "expected_loose",
    "guarded",
    "mismatches",
    "harm",
    *(f"{arm}_{what}" for arm in ARMS for what in ("requests", "tokens")),
)
"""Counters: rounds with a draft, drafted tokens, accepted ones, those that the strict test refuses
(greedy requests), strict ones behind a loose one, the expected number of loose ones (sampled
requests, where the native verdict cannot be seen), rounds in which the loop guard kept the gate
closed, mismatches that greedy requests came to and the sum of the gate's P(harm) at them, and for
each arm requests and their tokens."""


class Counters:
    """A row of counters per slot, and their sums; kept on the device, read on request."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.slots_SC = torch.zeros(slots, len(NAMES), dtype=torch.float32, device=device)
        self.total_C = torch.zeros(
            len(NAMES), dtype=torch.float64, device="cpu" if device.type == "mps" else device
        )

    def add(self, slots_B: Tensor, counts_BC: Tensor) -> None:
        self.slots_SC.index_add_(0, slots_B, counts_BC.float())
        self.total_C += counts_BC.double().sum(0)

    def total(self, slot: int | None = None) -> dict[str, float]:
        """All requests together, or the one of a slot; waits for the device."""
        counts_C = self.total_C if slot is None else self.slots_SC[slot]
        return dict(zip(NAMES, counts_C.tolist(), strict=True))


class DeviceLoopGuard:
    """Remembers the last tokens of each slot on the device; loops are easy to draft, so broken
    output looks fastest.
    """

    def __init__(
        self,
        slots: int,
        device: torch.device,
        period: int = 64,
        repeats: int = 4,
        window: int = 128,
    ) -> None:
        self.period = period
        self.repeats = repeats
        self.window = window
        self.tail_SL = torch.full((slots, period * repeats), -1, dtype=torch.long, device=device)
        self.closed_S = torch.zeros(
            slots, dtype=torch.long, device=device
        )  # tokens for which each slot stays closed
        self.loose_S = torch.zeros(slots, dtype=torch.bool, device=device)

    def forget(self, slot: int) -> None:
        """Make a slot free for another request."""
        self.tail_SL[slot] = -1
        self.closed_S[slot] = 0
        self.loose_S[slot] = False

    def saw(
        self, slots_B: Tensor, read_B: Tensor | None, written_BR: Tensor, loose_B: Tensor
    ) -> None:
        """Take note of a round: the token before the draft, what was written (-1 behind its end),
        if loosely.
        """
        tail_BL = self.tail_SL[slots_B]
        written_BR = written_BR.long()
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


class VllmJudge:
    """Applies a policy to the calls of one worker, and counts."""

    def __init__(
        self,
        policy: Policy,
        protected: tuple[int, ...],
        max_requests: int,
        device: torch.device,
        loop_guard: bool = True,
        share: Callable[[Tensor], Tensor] = lambda mask: mask,
        tokenizer: Any = None,
    ) -> None:
        """`protected` token ids stay strict; `share` makes the ranks of a tensor-parallel group
        agree on a mask.
        """
        assert policy.rule is not None, "a strict policy needs no judge"
        slots = max_requests + SPARE
        self.policy = policy
        self.share = share
        self.protected = torch.tensor(protected, dtype=torch.long, device=device)
        self.counters = Counters(slots, device)
        self.guard = DeviceLoopGuard(slots, device) if loop_guard else None
        self.requests = Requests(
            policy.rule,
            slots,
            self._forget,
            policy.covered_only,
            tokenizer,
            policy.shadow,
            policy.stops,
        )
        self.tail = policy.gate is not None and "scalars" in policy.gate.features

    def _forget(self, slot: int) -> None:
        self.counters.slots_SC[slot] = 0
        if self.guard is not None:
            self.guard.forget(slot)

    @contextmanager
    def verdict(
        self, rows: Rows, valid_BK: Tensor, hidden_BRD: Tensor | None, params: Callable[[str], Any]
    ) -> Iterator[Callable[[Tensor, Tensor], None]]:
        """Force what a call has to accept; `params` gives the sampling parameters of a request id.

        What is yielded counts the outcome: accepted tokens of each request [B], and those that were
            written [B, R], -1
        behind the last one.
        """
        entries = [self.requests.find(name, params(name)) for name in rows.request_ids]
        device = valid_BK.device
        slots_B = torch.tensor([entry.slot for entry in entries], device=device)
        block = RowBlock(
            draft_ids=rows.ids[rows.draft_places],
            valid=valid_BK,
            logits=torch.full((), torch.nan, device=device).expand(
                *rows.places.shape, rows.logits.shape[-1]
            ),
            hidden={} if hidden_BRD is None else {"post": hidden_BRD},
            protocol=self.protected,
            rows=rows,
            with_tail=self.tail,
        )
        arms = [
            torch.tensor([entry.arm == arm for entry in entries], device=device) for arm in ARMS
        ]
        new_B = torch.tensor([entry.is_new for entry in entries], device=device)
        scoped = {number: entry for number, entry in enumerate(entries) if entry.scope is not None}
        if scoped:
            block = block.having(inside=self.inside(scoped, rows, block))
        if self.policy.gate is not None:
            block = block.having(gate_probs=self.policy.gate(block))
        kept_BK = block.gate_probs
        harm_BK = (
            torch.zeros_like(valid_BK, dtype=torch.float32)
            if kept_BK is None
            else 1 - kept_BK.float()
        )
        mask_BK = torch.zeros_like(valid_BK)
        for rule in {entry.rule for entry in entries if entry.rule is not None}:
            own_B = torch.tensor([entry.rule == rule for entry in entries], device=device)
            mask_BK |= self.opinion(rule, block, rows) & own_B[:, None]
        closed_B = (
            torch.zeros_like(slots_B).bool()
            if self.guard is None
            else self.guard.closed_S[slots_B] > 0
        )
        mask_BK = self.share(mask_BK & allowed(block) & ~closed_B[:, None])
        # Known before the logits are changed: the match, and with which probability the strict test
        # would accept.
        match_BK = block.match
        greedy_B1 = rows.greedy[:, None]
        share_BK = torch.ones_like(mask_BK, dtype=torch.float32)
        if not rows.all_greedy:
            share_BK = (block.draft_logprob.exp() / block.draft_q).nan_to_num(1.0)

        def settle(length_B: Tensor, written_BR: Tensor) -> None:
            for entry in entries:
                entry.is_new = False
            for number, entry in scoped.items():
                own = [token for token in written_BR[number].tolist() if token >= 0]
                entry.written |= dict(enumerate(own, start=entry.end))
            stays_BK = (
                torch.arange(valid_BK.shape[1], device=device) < length_B[:, None]
            ) & valid_BK
            loose_BK = stays_BK & ~match_BK & greedy_B1
            carried_BK = stays_BK & match_BK & greedy_B1 & (loose_BK.cumsum(1) > 0)
            reached_BK = (
                torch.arange(valid_BK.shape[1], device=device) <= length_B[:, None]
            ) & valid_BK
            met_BK = reached_BK & ~match_BK & greedy_B1
            # Padding may hold NaN (0 - 0 times infinity), so it is chosen away and not multiplied
            # away.
            expected_BK = torch.where(
                stays_BK & mask_BK & ~greedy_B1, 1 - share_BK.clamp_max(1), 0.0
            )
            tokens_B = (written_BR >= 0).sum(1)
            drafted_B = valid_BK.sum(1)
            num_loose_B = loose_BK.sum(1)
            expected_B = expected_BK.sum(1)
            columns = (
                drafted_B > 0,
                drafted_B,
                stays_BK.sum(1),
                num_loose_B,
                carried_BK.sum(1),
                expected_B,
                closed_B & (drafted_B > 0),
                met_BK.sum(1),
                torch.where(met_BK, harm_BK, 0.0).sum(1),
                *(column for arm_B in arms for column in (arm_B & new_B, arm_B * tokens_B)),
            )
            self.counters.add(slots_B, torch.stack([column.double() for column in columns], dim=-1))
            if self.guard is not None:
                self.guard.saw(slots_B, rows.read, written_BR, (num_loose_B > 0) | (expected_B > 0))

        with rows.forced(mask_BK):
            yield settle

    def inside(self, entries: Mapping[int, Entry], rows: Rows, block: RowBlock) -> Tensor:
        """Where the scopes of requests, by number in the batch, permit looseness [B, K]; this waits
        for the device.
        """
        assert rows.read is not None and rows.at is not None
        columns = [each.tolist() for each in (rows.at, rows.read, block.draft_ids, block.top_ids)]
        inside_BK = torch.ones_like(block.valid)
        for number, entry in entries.items():
            prompt, known = rows.text(number)
            at, read, draft, best = (column[number] for column in columns)
            entry.end = at + 1 - len(prompt)
            entry.written[entry.end - 1] = read
            answer = [
                entry.written.get(n, known[n] if n < len(known) else -1) for n in range(entry.end)
            ]
            assert entry.scope is not None
            entry.reading = entry.reading or Reading(entry.scope.start(prompt))
            where = entry.scope.along(entry.reading, answer, draft, best)
            inside_BK[number] = torch.tensor(where, device=inside_BK.device)
        return inside_BK

    def opinion(self, rule: Rule, block: RowBlock, rows: Rows) -> Tensor:
        """What a rule accepts [B, K]; sampled requests only where the policy judges them."""
        mask_BK = torch.zeros_like(block.valid)
        for greedy in (True, False):
            if not (rows.all_sampled if greedy else rows.all_greedy or not self.policy.sampled):
                own = block.having(greedy=greedy)
                accepted_BK = (
                    ensemble(rule, own) if isinstance(rule, Ensemble) else rule.accept(own, {})
                )
                mask_BK |= accepted_BK & (rows.greedy == greedy)[:, None]
        return mask_BK


def ensemble(rule: Ensemble, block: RowBlock) -> Tensor:
    """The ensemble rule (arXiv 2604.07622) on flat rows [B, K], the one here that needs the
    drafter's distribution.

    Sampled: the native test accepts with min(1, p / q). Forcing each token with probability 1 - w
        on top makes that
    min(1, 1 - w + w p / q), which is the rule, and the native residual draw completes the mixture.
    """
    rows = block.rows
    logits_of = block.rows.draft_logits
    if rule.w < 1 and not block.greedy:
        return torch.rand(block.valid.shape, device=block.valid.device) < 1 - rule.w
    if rule.w == 1 or logits_of is None:
        return torch.zeros_like(block.valid)

    def favourite(z: Tensor, row_N: Tensor) -> Tensor:
        q = logits_of(row_N).float().softmax(-1)
        return rule.favourite(z, z.softmax(-1), F.pad(q, (0, z.shape[-1] - q.shape[-1])))

    best_N = rows.each(favourite, torch.arange(len(rows.ids), device=rows.ids.device))
    return best_N[rows.draft_places] == block.draft_ids


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
    """Replace `module.rejection_sample`, once per process: `verify(call, native, *arguments)`
    judges inside a step.
    """
    native = module.rejection_sample
    if hasattr(native, MARK):
        return
    wanted = [
        name
        for name, one in signature(verify).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ][2:]
    found = list(signature(native).parameters)[: len(wanted)]
    if wanted != found:
        raise UserError(
            f"gistgate cannot hook this vLLM: rejection_sample should have {', '.join(wanted)}, but"
            f" has {', '.join(found) or 'none of them'}. Install a version that gistgate was tested"
            " with."
        )

    @wraps(native)
    def rejection_sample(*arguments: Any, **options: Any) -> Any:
        call = CALL.get()
        return (
            native(*arguments, **options)
            if call is None
            else verify(call, native, *arguments, **options)
        )

    setattr(rejection_sample, MARK, True)
    module.rejection_sample = rejection_sample
