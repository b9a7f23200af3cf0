"""Hidden states of whole texts from vLLM, in the numerics of the engine that will serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gistgate.errors import UserError
from pipeline.labels.vllm_start import start_vllm
from pipeline.pairs.source import ModelSource

ON_CPU = {"kv_connector": "StatesOnCpu", "kv_connector_module_path": "gistgate.integrations.vllm.states"}
"""vLLM's own connector copies with CUDA."""


class VllmStates:
    """A target that vLLM holds, asked for the states of its layers."""

    def __init__(self, source: ModelSource, layers: Sequence[int], arguments: Mapping[str, Any], folder: Path) -> None:
        """Start vLLM.

        Args:
            source: the target.
            layers: numbers of layers whose outputs are wanted, counted from 1.
            arguments: those of `vllm.LLM` besides the model and its dtype.
            folder: where states wait until they are read.

        Raises:
            UserError: as `start_vllm`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        connector = {"kv_connector": "ExampleHiddenStatesConnector"} if torch.cuda.is_available() else ON_CPU
        extra = {"kv_connector_extra_config": {"shared_storage_path": str(folder)}}
        aux = {"eagle_aux_hidden_state_layer_ids": list(layers)}
        self.behind = ""
        """File of the last request without meaning."""
        self.llm = start_vllm(
            "engine.states",
            source,
            arguments,
            enable_prefix_caching=False,
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {"hf_config": aux},
            },
            kv_transfer_config={"kv_role": "kv_producer", **extra, **connector},
        )

    def __call__(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """The states after every token of each text [n, layers, D]."""
        from vllm import SamplingParams
        from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stored

        once = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        done = self.llm.generate([prompt(text) for text in texts], once, use_tqdm=False)
        # States are written in the step behind their own, so a request without meaning follows; its own come last.
        (behind,) = self.llm.generate([prompt([0])], once, use_tqdm=False)
        if self.behind:
            stored.cleanup_hidden_states(self.behind)
        self.behind = behind.kv_transfer_params["hidden_states_path"]
        found = []
        for text, output in zip(texts, done, strict=True):
            path = output.kv_transfer_params["hidden_states_path"]
            states = stored.load_hidden_states(path)
            stored.cleanup_hidden_states(path)
            if states["token_ids"].tolist() != list(text):
                raise UserError("vLLM returned the states of another text. Report this with the version of vLLM.")
            found.append(states["hidden_states"])
        return found


def prompt(text: Sequence[int]) -> dict[str, list[int]]:
    """A text as vLLM takes it."""
    return {"prompt_token_ids": list(text)}
