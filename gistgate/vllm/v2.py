"""The hook of vLLM's second model runner (V2). Its sampler works through a batch in chunks of whole
requests, bonus rows included; the draft token that row r judges is the one that row r + 1 has
read."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.vllm.judge import VllmJudge, during, wrap_once
from gistgate.vllm.rows import Rows


@dataclass
class Call:
    """One step of the engine."""

    judge: VllmJudge
    running: dict[str, Any]  # the requests that run, as the scheduler sent them
    states: Any  # vLLM's `RequestState`, which holds their texts
    temperatures: Any  # temperature of each request slot, on the host
    hidden: Tensor  # states of all logits rows [N, D]
    batch: Any  # vLLM's `InputBatch`
    row: int = 0  # rows of the chunks that are done
    request: int = 0  # requests of the chunks that are done


def install(runner: Any, judge: VllmJudge) -> None:
    """Hook a runner."""
    wrap_once(import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler"), verify)
    sample = runner.sample
    add_requests = runner.add_requests
    running: dict[str, Any] = {}

    def noting_params(scheduled: Any) -> Any:
        known = runner.req_states.req_id_to_index
        for name in [name for name in running if name not in known]:
            del running[name]
        running.update({new.req_id: new for new in scheduled.scheduled_new_reqs})
        return add_requests(scheduled)

    def noting_states(hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        if not input_batch.num_draft_tokens or not all(
            name in running for name in input_batch.req_ids
        ):
            return sample(
                hidden_states, input_batch, grammar_output
            )  # nothing is judged, or a dummy run
        temperatures = runner.sampler.sampling_states.temperature.np
        hidden_ND = hidden_states[input_batch.logits_indices]
        with during(Call(judge, running, runner.req_states, temperatures, hidden_ND, input_batch)):
            return sample(hidden_states, input_batch, grammar_output)

    runner.add_requests = noting_params
    runner.sample = noting_states


def verify(
    call: Call,
    native: Callable[..., tuple[Tensor, Tensor]],
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    temperature: Tensor,
    seed: Tensor,
    num_speculative_steps: int,
    *more: Any,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """vLLM's `rejection_sample` with the verdict in force, for one chunk."""
    num_rows = len(target_logits)
    num_requests = len(cu_num_logits) - 1
    hidden_ND = call.hidden[call.row : call.row + num_rows]
    chunk = slice(call.request, call.request + num_requests)
    call.row = call.row + num_rows
    call.request = call.request + num_requests
    rows, valid_BK = read_rows(
        call,
        chunk,
        target_logits,
        draft_logits,
        draft_sampled,
        cu_num_logits.long(),
        pos,
        idx_mapping.long(),
        expanded_idx_mapping.long(),
        temperature,
        num_speculative_steps,
    )
    with call.judge.verdict(
        rows, valid_BK, hidden_ND[rows.places], lambda name: call.running[name].sampling_params
    ) as settle:
        sampled_BR, num_sampled_B = native(
            target_logits,
            draft_logits,
            draft_sampled,
            cu_num_logits,
            pos,
            idx_mapping,
            expanded_idx_mapping,
            expanded_local_pos,
            temperature,
            seed,
            num_speculative_steps,
            *more,
            **options,
        )
        at_R = torch.arange(sampled_BR.shape[1], device=sampled_BR.device)
        settle(
            (num_sampled_B - 1).clamp_min(0),
            torch.where(at_R < num_sampled_B[:, None], sampled_BR, -1),
        )
    return sampled_BR, num_sampled_B


def read_rows(
    call: Call,
    chunk: slice,
    logits_NV: Tensor,
    draft_SKV: Tensor | None,
    read_N: Tensor,
    ends_B: Tensor,
    pos_N: Tensor,
    slot_B: Tensor,
    slot_N: Tensor,
    temperature_S: Tensor,
    num_K: int,
) -> tuple[Rows, Tensor]:
    """The rows of a chunk, and which positions hold a draft token [B, K]."""
    at_R = torch.arange(num_K + 1, device=read_N.device)
    at_N = torch.arange(len(read_N), device=read_N.device)
    start_B1 = ends_B[:-1, None]
    last_B1 = ends_B[1:, None] - 1
    place_BR = torch.minimum(start_B1 + at_R, last_B1)
    judged_N = read_N.long().roll(-1)
    names = call.batch.req_ids[chunk]
    given_BK = (start_B1 + at_R[:-1] < last_B1) & (judged_N[place_BR[:, :-1]] >= 0)
    first_N = ends_B[
        torch.searchsorted(ends_B, at_N, right=True) - 1
    ]  # first row of the request of each row
    step_N = (at_N - first_N).clamp_max(num_K - 1)

    def draft_logits(row_n: Tensor) -> Tensor:
        assert draft_SKV is not None
        return draft_SKV[slot_N[row_n], step_N[row_n]]

    def q_of(_z: Tensor, row_n: Tensor, x_n: Tensor, warm_n1: Tensor) -> Tensor:
        scaled = draft_logits(row_n).float() / torch.where(warm_n1 == 0, 1.0, warm_n1)
        return scaled.softmax(-1).gather(-1, x_n[:, None]).squeeze(-1)

    def draft_q() -> Tensor:
        return rows.each(q_of, at_N, rows.ids, temperature_S[slot_N][:, None])[rows.draft_places]

    def text(number: int) -> tuple[list[int], list[int]]:
        prompt = call.running[names[number]].prompt_token_ids or []
        stored = call.states.all_token_ids.gpu[
            slot_B[number], len(prompt) : pos_N[ends_B[number]] + 1
        ]
        return prompt, stored.tolist()

    cold = call.temperatures[call.batch.idx_mapping_np[chunk]] == 0
    rows = Rows(
        logits_NV,
        judged_N.clamp_min(0),
        place_BR,
        names,
        temperature_S[slot_B] == 0,
        bool(cold.all()),
        not cold.any(),
        draft_q=None if draft_SKV is None else draft_q,
        draft_logits=None if draft_SKV is None else draft_logits,
        read=read_N[ends_B[:-1]],
        at=pos_N[ends_B[:-1]],
        text=text,
    )
    return rows, given_BK.cumprod(1).bool()
