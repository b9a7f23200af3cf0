"""Start vLLM for a stage, or say why it cannot be started. vLLM is imported by the modules `pipeline.labels.vllm_*`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gistgate.errors import UserError
from pipeline.pairs.source import ModelSource
from pipeline.params import Params


def check_alone(params: Params) -> None:
    """A target in vLLM wants one process.

    Raises:
        UserError: several workers would each start a vLLM.
    """
    if params.decoding.workers > 1:
        raise UserError("Each worker would start a vLLM of its own. Set decoding.workers to 1 in params.yaml.")


def start_vllm(key: str, source: ModelSource, arguments: Mapping[str, Any], **more: Any) -> Any:
    """The `vllm.LLM` of a target that reads and writes token ids.

    Args:
        key: the parameter that asks for vLLM, such as engine.rollouts.
        source: the target.
        arguments: what the user adds; `more` is what the stage adds.

    Raises:
        UserError: vLLM is missing, or the target is one that it is not given.
    """
    instead = f"or set {key} to own in params.yaml."
    try:
        import vllm
    except ImportError as error:
        raise UserError(
            f"{key} is vllm, but vLLM is not installed here. Install the extra `vllm` into this environment, {instead}"
        ) from error
    if source.gguf_file:
        raise UserError(
            f"{source.model} is a GGUF file, which vLLM is not given. Name a folder of safetensors, {instead}"
        )
    return vllm.LLM(
        source.model, dtype=source.dtype, revision=source.revision, skip_tokenizer_init=True, **more, **arguments
    )
