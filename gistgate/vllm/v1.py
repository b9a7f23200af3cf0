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
from gistgate.vllm.judge import CALL, VllmJudge, during, wrap_once
from gistgate.vllm.rows import Rows


@dataclass
class Call:
    """One step of the engine."""

    judge: VllmJudge
    runner: Any
    hidden: Tensor | None  # states of all logits rows [T + B, D]
    metadata: Any = None  # vLLM's `SpecDecodeMetadata`, once its sampler was called
    logits: Tensor | None = None  # raw logits of all rows [T + B, V]


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
        with during(Call(judge, runner, None if state is None else state.sample_hidden_states)):
            return sample_tokens(*arguments, **options)

    def noting_rows(
        metadata: Any, draft_probs: Any, logits: Tensor, *more: Any, **options: Any
    ) -> Any:
        if (call := CALL.get()) is not None:
            call.metadata = metadata
            call.logits = logits
        return forward(metadata, draft_probs, logits, *more, **options)

    runner.sample_tokens = noting_states
    runner.rejection_sampler.forward = noting_rows


def show_greedy_drafts(drafter: Any) -> None:
    """Let the drafter name its probabilities [B, V] in greedy batches too, for which vLLM does not
    compute them.
    """
    draft = drafter._sample_draft_tokens

    def naming(hidden_BD: Tensor, sampling: Any) -> tuple[Tensor, Tensor | None]:
        if not sampling.all_greedy:
            return draft(hidden_BD, sampling)  # type: ignore[no-any-return]
        logits_BV = drafter.model.compute_logits(hidden_BD)
        return logits_BV.argmax(-1), logits_BV.softmax(-1, dtype=torch.float32)

    drafter._sample_draft_tokens = naming


def expand(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """`x [B]` repeated for each request's tokens [num_tokens], `replace_from` turned into
    `replace_to`.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    expanded = x.repeat_interleave(counts, output_size=num_tokens)
    return torch.where(
        expanded == replace_from, torch.as_tensor(replace_to, dtype=x.dtype), expanded
    )


def verify(
    call: Call,
    native: Callable[..., Tensor],
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Tensor | None,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    sampling_metadata: Any,
    *more: Any,
    **options: Any,
) -> Tensor:
    """vLLM's `rejection_sample` with the verdict in force."""

    def unchanged() -> Tensor:
        return native(
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
            bonus_token_ids,
            sampling_metadata,
            *more,
            **options,
        )

    if call.metadata is None or not len(draft_token_ids):
        return unchanged()
    num_B = torch.tensor(num_draft_tokens, device=draft_token_ids.device)
    rows, valid_BK = read_rows(
        call, num_B, max_spec_len, draft_token_ids, draft_probs, target_logits, sampling_metadata
    )
    # The rows of a request are consecutive among all rows and end with its bonus row.
    last_B1 = call.metadata.bonus_logits_indices[:, None]
    at_R = torch.arange(max_spec_len + 1, device=last_B1.device)
    row_BR = torch.minimum(last_B1 - num_B[:, None] + at_R, last_B1)
    hidden_BRD = None if call.hidden is None else call.hidden[row_BR]
    requests = call.runner.requests
    with call.judge.verdict(
        rows, valid_BK, hidden_BRD, lambda name: requests[name].sampling_params
    ) as settle:
        result_BR = unchanged()
        settle(torch.minimum((result_BR >= 0).sum(1) - 1, num_B), result_BR)
    return result_BR


def read_rows(
    call: Call,
    num_B: Tensor,
    num_K: int,
    ids_T: Tensor,
    probs_TV: Tensor | None,
    logits_TV: Tensor,
    sampling: Any,
) -> tuple[Rows, Tensor]:
    """The rows of a call, and which positions hold a draft token [B, K]."""
    total = len(ids_T)
    num_requests = len(num_B)
    device = ids_T.device
    at_R = torch.arange(num_K + 1, device=device)
    start_B1 = (num_B.cumsum(0) - num_B)[:, None]
    behind_B1 = total + torch.arange(num_requests, device=device)[:, None]
    drafted_BR = at_R < num_B[:, None]
    place_BR = torch.where(drafted_BR, start_B1 + at_R, behind_B1)
    own_T = ids_T.long()
    bonus_B = call.metadata.bonus_logits_indices
    before_B = call.metadata.logits_indices[bonus_B - num_B]
    names = list(call.runner.input_batch.req_ids)

    def text(number: int) -> tuple[list[int], list[int]]:
        request = call.runner.requests[names[number]]
        return request.prompt_token_ids or [], request.output_token_ids

    greedy_B = torch.ones(num_requests, dtype=torch.bool, device=device)
    rows = Rows(
        logits_TV,
        own_T.clamp_min(0),
        place_BR,
        names,
        greedy_B if sampling.all_greedy else sampling.temperature == 0,
        bool(sampling.all_greedy),
        bool(sampling.all_random),
        tail=lambda: call.logits[bonus_B],  # type: ignore[index]
        draft_q=None
        if probs_TV is None
        else lambda: probs_TV.gather(1, rows.ids[:, None])[:, 0][rows.draft_places],
        draft_logits=None if probs_TV is None else lambda row_n: probs_TV[row_n].log(),
        read=call.runner.input_ids.gpu[before_B],
        at=call.runner.positions[before_B],
        text=text,
    )
    given_BK = drafted_BR[:, :-1] & (own_T[rows.draft_places] >= 0)
    return rows, given_BK.cumprod(1).bool()
