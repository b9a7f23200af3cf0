"""The hook of vLLM's first model runner (V1). Its sampler sees only the rows that judge draft
tokens [T, V], so that the states [T + B, D] and the logits of all rows are noted on the way
there."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.rules.divergence import Ensemble
from gistgate.vllm import CALL, during, wrap_once
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.rows import Rows


@dataclass
class Call:
    """One step of the engine."""

    judge: VllmJudge
    runner: Any
    hidden: Tensor | None
    """States of all logits rows [T + B, D]."""
    metadata: Any = None
    """vLLM's `SpecDecodeMetadata`, once its sampler was called."""
    logits: Any = None
    """Raw logits of all rows [T + B, V]."""


def install(runner: Any, judge: VllmJudge) -> None:
    """Hook a runner."""
    module: Any = import_module("vllm.v1.sample.rejection_sampler")
    wrap_once(module, verify)
    if runner.device.type == "cpu":
        module.expand_batch_to_tokens = expand  # vLLM's own leaves memory uninitialised there
    if isinstance(judge.policy.rule, Ensemble) and hasattr(runner.drafter, "_sample_draft_tokens"):
        show_greedy_drafts(runner.drafter)
    sample_tokens = runner.sample_tokens
    forward = runner.rejection_sampler.forward

    def noting_states(*arguments: Any, **options: Any) -> Any:
        state = runner.execute_model_state
        hidden = None if state is None else state.sample_hidden_states
        with during(Call(judge, runner, hidden)):
            return sample_tokens(*arguments, **options)

    def noting_rows(
        metadata: Any,
        draft_probs: Any,
        logits: Tensor,
        *more: Any,
    ) -> Any:
        call = CALL.get()
        if call is not None:
            call.metadata = metadata
            call.logits = logits
        return forward(metadata, draft_probs, logits, *more)

    runner.sample_tokens = noting_states
    runner.rejection_sampler.forward = noting_rows


def show_greedy_drafts(drafter: Any) -> None:
    """Let the drafter name its probabilities [B, V] in greedy batches too, for which vLLM does not
    compute them.
    """
    draft = drafter._sample_draft_tokens

    def naming(hidden_BD: Tensor, sampling: Any) -> Any:
        if not sampling.all_greedy:
            return draft(hidden_BD, sampling)
        logits_BV = drafter.model.compute_logits(hidden_BD)
        return logits_BV.argmax(-1), logits_BV.softmax(-1, dtype=torch.float32)

    drafter._sample_draft_tokens = naming


def expand(
    x: Tensor,
    cu_num_tokens: Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> Tensor:
    """`x [B]` repeated for each request's tokens [num_tokens], `replace_from` turned into
    `replace_to`.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return expanded.masked_fill(expanded == replace_from, replace_to)


def verify(
    call: Call,
    native: Callable[[], Tensor],
    *,
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    sampling_metadata: Any,
    **_: Any,
) -> Tensor:
    """vLLM's `rejection_sample` with the verdict in force."""
    if call.metadata is None or not len(draft_token_ids):
        return native()
    num_B = torch.tensor(num_draft_tokens, device=draft_token_ids.device)
    at_R = torch.arange(max_spec_len + 1, device=num_B.device)
    drafted_BR = at_R < num_B[:, None]
    start_B1 = (num_B.cumsum(0) - num_B)[:, None]
    behind_B = len(draft_token_ids) + torch.arange(len(num_B), device=num_B.device)
    # The rows of a request are consecutive among all rows and end with its bonus row.
    bonus_B = call.metadata.bonus_logits_indices
    first_B = bonus_B - num_B
    row_BR = torch.minimum(first_B[:, None] + at_R, bonus_B[:, None])
    before_B = call.metadata.logits_indices[first_B]
    names = list(call.runner.input_batch.req_ids)
    requests = [call.runner.requests[name] for name in names]

    def text(number: int) -> tuple[list[int], list[int]]:
        return requests[number].prompt_token_ids or [], requests[number].output_token_ids

    greedy_B = torch.ones_like(num_B, dtype=torch.bool)
    if not sampling_metadata.all_greedy:
        greedy_B = sampling_metadata.temperature == 0
    rows = Rows(
        logits=target_logits,
        judged=draft_token_ids.long(),
        places=torch.where(drafted_BR, start_B1 + at_R, behind_B[:, None]),
        drafted=drafted_BR[:, :-1],
        hidden=None if call.hidden is None else call.hidden[row_BR],
        params=dict(zip(names, [request.sampling_params for request in requests])),
        greedy=greedy_B,
        has_greedy=not sampling_metadata.all_random,
        has_sampled=not sampling_metadata.all_greedy,
        read=call.runner.input_ids.gpu[before_B],
        at=call.runner.positions[before_B],
        text=text,
        draft_probs=None if draft_probs is None else draft_probs.__getitem__,
        tail=lambda: call.logits[bonus_B],
    )
    with call.judge.verdict(rows) as settle:
        result_BR = native()
        settle(torch.minimum((result_BR >= 0).sum(1) - 1, num_B), result_BR)
    return result_BR
