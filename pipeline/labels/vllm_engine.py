"""The target in vLLM: rollouts of large targets at the speed of a serving engine. vLLM is imported here alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gistgate.block import Sampling
from gistgate.errors import UserError
from pipeline.labels.served_rollouts import Asked
from pipeline.pairs.source import ModelSource


class VllmEngine:
    """A target that vLLM holds, for one process."""

    def __init__(self, source: ModelSource, arguments: Mapping[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `vllm.LLM` besides the model and its dtype.

        Raises:
            UserError: vLLM is missing, or the target is one that it is not given.
        """
        try:
            import vllm
        except ImportError as error:
            raise UserError(
                "engine.rollouts is vllm, but vLLM is not installed here. Install gistgate[vllm] into this "
                "environment, or set engine.rollouts to own in params.yaml."
            ) from error
        if source.gguf_file:
            raise UserError(
                f"{source.model} is a GGUF file, which is not handed over to vLLM. Name a folder of safetensors, "
                " or set engine.rollouts to own in params.yaml."
            )
        self.vllm = vllm
        self.llm = vllm.LLM(
            source.model,
            dtype=source.dtype,
            revision=source.revision,
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            **arguments,
        )

    def __call__(self, asked: Sequence[Asked], sampling: Sampling, eos_ids: Sequence[int]) -> list[list[int]]:
        """New tokens of every text."""
        params = [
            self.vllm.SamplingParams(
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
