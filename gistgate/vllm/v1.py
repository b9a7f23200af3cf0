"""The hook of vLLM's first model runner (V1).

Its sampler hands over only the rows that judge draft tokens [T, V]; the hidden rows [T + B, D] and the logits with the
bonus rows are noted on the way there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.vllm.judge import Judge, Rows, during, run_native, wrap_once


@dataclass
class Call:
    """One step of the engine."""

    judge: Judge
    runner: Any
    hidden: Tensor | None
    """States of all logits rows [R, D]."""
    metadata: Any = None
    """vLLM's `SpecDecodeMetadata`, once its sampler was called."""
    logits: Tensor | None = None
    """Raw logits of all rows [R, V]."""


def install(runner: Any, judge: Judge) -> None:
    """Hook a runner. The names that are used were checked before."""
    wrap_once(import_module("vllm.v1.sample.rejection_sampler"), verify)
    sample_tokens, forward = runner.sample_tokens, runner.rejection_sampler.forward

    def noting_states(*arguments: Any, **options: Any) -> Any:
        state = runner.execute_model_state
        hidden_RD = None if state is None else state.sample_hidden_states
        with during(call := Call(judge, runner, hidden_RD)):
            noting.append(call)
            try:
                return sample_tokens(*arguments, **options)
            finally:
                noting.clear()

    noting: list[Call] = []

    def noting_rows(metadata: Any, draft_probs: Any, logits: Tensor, *more: Any, **options: Any) -> Any:
        for call in noting:
            call.metadata, call.logits = metadata, logits
        return forward(metadata, draft_probs, logits, *more, **options)

    runner.sample_tokens = noting_states
    runner.rejection_sampler.forward = noting_rows


def verify(
    call: Call, native: Callable[..., Tensor], draft_token_ids: Tensor, num_draft_tokens: list[int],
    max_spec_len: int, cu_num_draft_tokens: Tensor, draft_probs: Tensor | None, target_logits: Tensor,
    bonus_token_ids: Tensor, sampling_metadata: Any, *more: Any, **options: Any,
) -> Tensor:  # fmt: skip
    """vLLM's `rejection_sample` with the verdict in force."""

    def unchanged() -> Tensor:
        return native(
            draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_logits,
            bonus_token_ids, sampling_metadata, *more, **options,
        )  # fmt: skip

    if call.metadata is None or not len(draft_token_ids):
        return unchanged()
    num_B = torch.tensor(num_draft_tokens, device=draft_token_ids.device)
    rows, valid_BK = read_rows(
        call, num_B, max_spec_len, draft_token_ids, draft_probs, target_logits, sampling_metadata
    )
    params = call.runner.requests
    verdict = call.judge.verdict(
        rows, valid_BK, hidden_rows(call, num_B, max_spec_len), lambda name: params[name].sampling_params
    )
    result_BR: Tensor = run_native(verdict, unchanged)
    length_B = (result_BR >= 0).sum(1) - 1
    verdict.settle(torch.minimum(length_B, num_B), result_BR)
    return result_BR


def read_rows(
    call: Call, num_B: Tensor, num_K: int, ids_T: Tensor, probs_TV: Tensor | None, logits_TV: Tensor, sampling: Any
) -> tuple[Rows, Tensor]:
    """The rows of a call, and which positions hold a draft token [B, K]."""
    total, num_requests, device = len(ids_T), len(num_B), ids_T.device
    at_R = torch.arange(num_K + 1, device=device)
    start_B1 = (num_B.cumsum(0) - num_B)[:, None]
    behind_B1 = total + torch.arange(num_requests, device=device)[:, None]
    drafted_BR = at_R < num_B[:, None]
    place_BR = torch.where(drafted_BR, start_B1 + at_R, behind_B1)
    own_T = ids_T.long()
    given_BK = drafted_BR[:, :-1] & (own_T[place_BR[:, :-1].clamp_max(total - 1)] >= 0)
    greedy_B = torch.ones(num_requests, dtype=torch.bool, device=device)
    if not sampling.all_greedy:
        greedy_B = sampling.temperature == 0

    def draft_q() -> Tensor:
        assert probs_TV is not None
        q_T = probs_TV.gather(1, own_T.clamp_min(0)[:, None]).squeeze(1)
        return q_T[place_BR[:, :-1].clamp_max(total - 1)]

    rows = Rows(
        logits_TV, own_T.clamp_min(0), place_BR, list(call.runner.input_batch.req_ids), greedy_B,
        bool(sampling.all_greedy), bool(sampling.all_random),
        tail=lambda: call.logits[call.metadata.bonus_logits_indices],  # type: ignore[index]
        draft_q=None if probs_TV is None else draft_q, read=read_tokens(call, num_B),
    )  # fmt: skip
    return rows, given_BK.cumprod(1).bool()


def hidden_rows(call: Call, num_B: Tensor, num_K: int) -> Tensor | None:
    """The target's states, padded [B, K + 1, D]: the rows of a request are consecutive and end with its bonus row."""
    if call.hidden is None:
        return None
    last_B1 = call.metadata.bonus_logits_indices[:, None]
    at_R = torch.arange(num_K + 1, device=last_B1.device)
    return call.hidden[torch.minimum(last_B1 - num_B[:, None] + at_R, last_B1)]


def read_tokens(call: Call, num_B: Tensor) -> Tensor:
    """The token in front of each request's draft [B]."""
    first_B = call.metadata.bonus_logits_indices - num_B
    tokens: Tensor = call.runner.input_ids.gpu
    return tokens[call.metadata.logits_indices[first_B]]
