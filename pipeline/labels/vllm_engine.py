"""The target in vLLM: rollouts of large targets at the speed of a serving engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gistgate.block import Sampling
from pipeline.labels.served_rollouts import Asked
from pipeline.labels.vllm_start import start_vllm
from pipeline.pairs.source import ModelSource


class VllmEngine:
    """A target that vLLM holds, for one process."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype.

        Raises:
            UserError: as `start_vllm`.
        """
        self.llm = start_vllm("engine.rollouts", source, arguments, enable_prefix_caching=True)

    def __call__(self, asked: Sequence[Asked], sampling: Sampling, eos_ids: Sequence[int]) -> list[list[int]]:
        """New tokens of every text."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                seed=None if sampling.greedy else one.seed,
                max_tokens=one.num,
                stop_token_ids=list(eos_ids),
                detokenize=False,
            )
            for one in asked
        ]
        prompts = [{"prompt_token_ids": one.text} for one in asked]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]
