"""The verdict on one verification call: which draft tokens vLLM's own test has to accept.

Axis letters: B requests, K drafted tokens, N flat rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.integrations.vllm.counters import Counters, count
from gistgate.integrations.vllm.loops import DeviceLoopGuard
from gistgate.integrations.vllm.policy import Policy
from gistgate.integrations.vllm.requests import SPARE, Requests
from gistgate.integrations.vllm.rows import RowBlock, Rows, make_block
from gistgate.rules.base import Rule, allowed
from gistgate.rules.ensemble import Ensemble


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
