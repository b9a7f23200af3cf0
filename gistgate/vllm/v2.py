"""The hook of vLLM's second model runner (V2). Its sampler works through a batch in chunks of whole
requests, bonus rows included; the draft token that row r judges is the one that row r + 1 has
read."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gistgate.vllm import during, wrap_once
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.rows import Rows


@dataclass
class Call:
    """One step of the engine."""

    judge: VllmJudge
    running: dict[str, Any]
    """The requests that run, as the scheduler sent them."""
    states: Any
    """vLLM's `RequestState`, which holds their texts."""
    temperatures: Any
    """Temperature of each request slot, on the host."""
    hidden: Tensor
    """States of all logits rows [N, D]."""
    batch: Any
    """vLLM's `InputBatch`."""
    row: int = 0
    """Rows of the chunks that are done."""
    request: int = 0
    """Requests of the chunks that are done."""

    def text(self, name: str, slot: Tensor, end: Tensor) -> tuple[list[int], list[int]]:
        """Prompt of a request, and its answer up to `end`, a place in the text."""
        prompt = self.running[name].prompt_token_ids or []
        return prompt, self.states.all_token_ids.gpu[slot, len(prompt) : end].tolist()


def install(runner: Any, judge: VllmJudge) -> None:
    """Hook a runner."""
    wrap_once(import_module("vllm.v1.worker.gpu.spec_decode.rejection_sampler"), verify)
    sample = runner.sample
    add_requests = runner.add_requests
    running: dict[str, Any] = {}

    def noting_params(scheduled: Any) -> Any:
        for name in running.keys() - runner.req_states.req_id_to_index:
            del running[name]
        running.update({new.req_id: new for new in scheduled.scheduled_new_reqs})
        return add_requests(scheduled)

    def noting_states(hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        # Else nothing is judged, or this is a dummy run.
        if input_batch.num_draft_tokens and running.keys() >= {*input_batch.req_ids}:
            temperatures = runner.sampler.sampling_states.temperature.np
            hidden_ND = hidden_states[input_batch.logits_indices]
            states = runner.req_states
            call = Call(judge, running, states, temperatures, hidden_ND, input_batch)
            with during(call):
                return sample(hidden_states, input_batch, grammar_output)
        return sample(hidden_states, input_batch, grammar_output)

    runner.add_requests = noting_params
    runner.sample = noting_states


def verify(
    call: Call,
    native: Callable[[], tuple[Tensor, Tensor]],
    *,
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    temperature: Tensor,
    num_speculative_steps: int,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """vLLM's `rejection_sample` with the verdict in force, for one chunk."""
    chunk = slice(call.request, call.request + len(idx_mapping))
    hidden_ND = call.hidden[call.row : call.row + len(target_logits)]
    call.row += len(target_logits)
    call.request = chunk.stop
    ends_B = cu_num_logits.long()
    slot_B = idx_mapping.long()
    last_B1 = ends_B[1:, None] - 1
    at_BR = ends_B[:-1, None] + torch.arange(num_speculative_steps + 1, device=ends_B.device)
    place_BR = torch.minimum(at_BR, last_B1)
    names = call.batch.req_ids[chunk]
    cold = call.temperatures[call.batch.idx_mapping_np[chunk]] == 0

    def draft_probs(row_n: Tensor) -> Tensor:
        assert draft_logits is not None
        request_n = torch.searchsorted(ends_B, row_n, right=True) - 1
        slot_n = expanded_idx_mapping[row_n].long()
        step_n = (row_n - ends_B[request_n]).clamp_max(num_speculative_steps - 1)
        warm_n1 = temperature[slot_n, None]
        z_nV = draft_logits[slot_n, step_n].float() / torch.where(warm_n1 == 0, 1.0, warm_n1)
        return z_nV.softmax(-1)

    rows = Rows(
        logits=target_logits,
        judged=draft_sampled.long().roll(-1),
        places=place_BR,
        drafted=at_BR[:, :-1] < last_B1,
        hidden=hidden_ND[place_BR],
        params={name: call.running[name].sampling_params for name in names},
        greedy=temperature[slot_B] == 0,
        has_greedy=bool(cold.any()),
        has_sampled=not cold.all(),
        read=draft_sampled[ends_B[:-1]],
        at=pos[ends_B[:-1]],
        text=lambda number: call.text(names[number], slot_B[number], pos[ends_B[number]] + 1),
        draft_probs=None if draft_logits is None else draft_probs,
    )
    with call.judge.verdict(rows) as settle:
        sampled_BR, num_sampled_B = native()
        at_R = torch.arange(sampled_BR.shape[1], device=sampled_BR.device)
        written_BR = sampled_BR.masked_fill(at_R >= num_sampled_B[:, None], -1)
        settle((num_sampled_B - 1).clamp_min(0), written_BR)
    return sampled_BR, num_sampled_B
