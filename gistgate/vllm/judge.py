"""The verdict on each verification call of vLLM: what to accept, what was counted, and who asked
for strictness.

Axis letters: B requests, K drafted tokens, R = K + 1, N flat rows, S slots of remembered requests,
    C counters.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.rule import Rule, allowed
from gistgate.core.scopes import Reading
from gistgate.rules.divergence import Ensemble
from gistgate.vllm.loops import DeviceLoopGuard
from gistgate.vllm.policy import Policy
from gistgate.vllm.requests import ARMS, Entry, Requests
from gistgate.vllm.rows import RowBlock, Rows

SPARE = 1024
"""Requests whose counts are kept after they have ended."""
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
    *(f"{arm}_{unit}" for arm in ARMS for unit in ("requests", "tokens")),
)
"""Counters: rounds with a draft, drafted tokens, accepted ones, those that the strict test refuses
(greedy requests), strict ones behind a loose one, the expected number of loose ones (sampled
requests, where the native verdict cannot be seen), rounds in which the loop guard kept the gate
closed, mismatches that greedy requests came to and the sum of the gate's P(harm) at them, and for
each arm requests and their tokens."""


class Counters:
    """A row of counters per slot, and their sums; kept on the device, read on request."""

    def __init__(
        self,
        slots: int,
        device: torch.device,
    ) -> None:
        self.slots_SC = torch.zeros(slots, len(NAMES), device=device)
        self.total_C = torch.zeros(len(NAMES), dtype=torch.float64, device=device)

    def add(
        self,
        slots_B: Tensor,
        counts: dict[str, Tensor],
    ) -> None:
        """Add the counts of a round, each [B]."""
        counts_BC = torch.stack([counts[name].double() for name in NAMES], -1)
        self.slots_SC.index_add_(0, slots_B, counts_BC.float())
        self.total_C += counts_BC.sum(0)

    def total(self, slot: int | None = None) -> dict[str, float]:
        """All requests together, or the one of a slot; waits for the device."""
        counts_C = self.total_C if slot is None else self.slots_SC[slot]
        return dict(zip(NAMES, counts_C.tolist()))


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
        self.requests = Requests(policy, slots, self._forget, tokenizer)

    def follow(self, policy: Policy) -> None:
        """Judge requests that are met from now on by another policy."""
        self.policy = policy
        self.requests.policy = policy

    def _forget(self, slot: int) -> None:
        self.counters.slots_SC[slot] = 0
        if self.guard is not None:
            self.guard.forget(slot)

    @contextmanager
    def verdict(self, rows: Rows) -> Iterator[Callable[[Tensor, Tensor], None]]:
        """Force what a call has to accept.

        What is yielded counts the outcome: accepted tokens of each request [B], and those that were
        written [B, R], -1 behind the last one.
        """
        entries = [self.requests.find(name, params) for name, params in rows.params.items()]
        slots_B = rows.column([entry.slot for entry in entries])
        closed_B = torch.zeros_like(rows.greedy)
        if self.guard is not None:
            closed_B = self.guard.closed_S[slots_B] > 0
        block = self.block(rows, entries)
        mask_BK = self.opinion(block, entries) & allowed(block) & ~closed_B[:, None]
        mask_BK = self.share(mask_BK)
        # Known before the logits are changed. Padding may hold NaN, so it is chosen away.
        match_BK = block.match & rows.greedy[:, None]
        mismatch_BK = block.valid & ~block.match & rows.greedy[:, None]
        doubt_BK = torch.zeros_like(mask_BK, dtype=torch.float32)
        harm_BK = doubt_BK
        if rows.has_sampled:  # there the strict test accepts with this probability
            share_BK = (block.draft_logprob.exp() / block.draft_q).nan_to_num(1.0).clamp_max(1)
            doubt_BK = torch.where(mask_BK & ~rows.greedy[:, None], 1 - share_BK, 0.0)
        if block.gate_probs is not None:
            harm_BK = torch.where(mismatch_BK, 1 - block.gate_probs.float(), 0.0)

        def settle(length_B: Tensor, written_BR: Tensor) -> None:
            at_K = torch.arange(mask_BK.shape[1], device=length_B.device)
            stays_BK = block.valid & (at_K < length_B[:, None])
            met_BK = mismatch_BK & (at_K <= length_B[:, None])
            loose_BK = mismatch_BK & stays_BK
            drafted_B = block.valid.sum(1)
            counts = {
                "blocks": drafted_B > 0,
                "drafted": drafted_B,
                "accepted": stays_BK.sum(1),
                "loose": loose_BK.sum(1),
                "carried": (match_BK & stays_BK & (loose_BK.cumsum(1) > 0)).sum(1),
                "expected_loose": (doubt_BK * stays_BK).sum(1),
                "guarded": closed_B & (drafted_B > 0),
                "mismatches": met_BK.sum(1),
                "harm": (harm_BK * met_BK).sum(1),
            }
            new_B = rows.column([entry.is_new for entry in entries])
            for arm in ARMS:
                arm_B = rows.column([entry.arm == arm for entry in entries])
                counts[f"{arm}_requests"] = arm_B & new_B
                counts[f"{arm}_tokens"] = arm_B * (written_BR >= 0).sum(1)
            self.counters.add(slots_B, counts)
            if self.guard is not None:
                loose_B = counts["loose"] + counts["expected_loose"] > 0
                self.guard.saw(slots_B, rows.read, written_BR, loose_B)
            for entry, written in zip(entries, written_BR):
                entry.settle(written)

        with rows.forced(mask_BK):
            yield settle

    def block(
        self,
        rows: Rows,
        entries: list[Entry],
    ) -> RowBlock:
        """The rows as a block, with what the scopes of requests and the gate say about it."""
        gate = self.policy.gate
        nothing = torch.full((), torch.nan, device=rows.ids.device)
        block = RowBlock(
            rows.ids[rows.draft_places],
            rows.valid,
            nothing.expand(*rows.places.shape, rows.logits.shape[-1]),
            hidden={} if rows.hidden is None else {"post": rows.hidden},
            protocol=self.protected,
            rows=rows,
            with_tail=gate is not None and "scalars" in gate.features,
        )
        if any(entry.scope is not None for entry in entries):
            block = block.having(inside=self.inside(block, entries))
        return block if gate is None else block.having(gate_probs=gate(block))

    def inside(
        self,
        block: RowBlock,
        entries: list[Entry],
    ) -> Tensor:
        """Where the scopes of requests permit looseness [B, K]; this waits for the device."""
        rows = block.rows
        facts = (rows.at, rows.read, block.draft_ids, block.top_ids)
        columns = [fact.tolist() for fact in facts]
        inside_BK = torch.ones_like(block.valid)
        for number, entry in enumerate(entries):
            if entry.scope is not None:
                at, read, draft, best = (column[number] for column in columns)
                prompt, fetched = rows.text(number)
                if entry.reading is None:
                    entry.reading = Reading(entry.scope.start(prompt))
                answer = entry.answer(prompt, fetched, at, read)
                inside = entry.scope.along(entry.reading, answer, draft, best)
                inside_BK[number] = torch.tensor(inside)
        return inside_BK

    def opinion(
        self,
        block: RowBlock,
        entries: list[Entry],
    ) -> Tensor:
        """What the rules of requests accept [B, K]; of sampled requests only where the policy
        judges them.
        """
        rows = block.rows
        mask_BK = torch.zeros_like(block.valid)
        for rule in {entry.rule for entry in entries if entry.rule is not None}:
            mine_B = rows.column([entry.rule == rule for entry in entries])
            if rows.has_greedy:
                mask_BK |= accepted(rule, block) & (mine_B & rows.greedy)[:, None]
            if rows.has_sampled and self.policy.sampled:
                sampled = block.having(greedy=False)
                mask_BK |= accepted(rule, sampled) & (mine_B & ~rows.greedy)[:, None]
        return mask_BK


def accepted(rule: Rule, block: RowBlock) -> Tensor:
    """What a rule accepts [B, K]."""
    return ensemble(rule, block) if isinstance(rule, Ensemble) else rule.accept(block)


def ensemble(rule: Ensemble, block: RowBlock) -> Tensor:
    """The ensemble rule (arXiv 2604.07622) on flat rows [B, K], the one here that needs the
    drafter's distribution.

    Sampled: the native test accepts with min(1, p / q). Forcing each token with probability 1 - w
    on top makes that min(1, 1 - w + w p / q), which is the rule, and the native residual draw
    completes the mixture.
    """
    rows = block.rows
    draft_probs = rows.draft_probs
    if rule.w < 1 and not block.greedy:
        return torch.rand(block.valid.shape, device=block.valid.device) < 1 - rule.w
    if rule.w == 1 or draft_probs is None:
        return torch.zeros_like(block.valid)

    def favourite(z: Tensor, row_N: Tensor) -> Tensor:
        q = draft_probs(row_N).float()
        return rule.favourite(z, z.softmax(-1), F.pad(q, (0, z.shape[-1] - q.shape[-1])))

    best_N = rows.each(favourite, torch.arange(len(rows.ids), device=rows.ids.device))
    return best_N[rows.draft_places] == block.draft_ids
