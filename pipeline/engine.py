"""How stages start vLLM, in their own process, with a model of the pair."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from gistgate.core.utils import UserError, first_line
from gistgate.models.places import PARTS, or_refuse
from pipeline.pair.pair import ModelSource

TOKENIZER_FILES = ("*.txt", "*.jinja")
"""Files of a tokenizer that `PARTS` leaves out, as patterns."""
REMEDY = "or set engine.answers and engine.rollouts to own in params.yaml."


def vllm_version() -> str:
    """The version of vLLM; UserError where it is not installed."""
    try:
        import vllm
    except ImportError as error:
        raise UserError(
            "params.yaml asks for vLLM, which is not installed here. Install the extra `vllm` into"
            f" this environment, {REMEDY}"
        ) from error
    return str(vllm.__version__)


def start(folder: str, dtype: str, arguments: Mapping[str, Any]) -> Any:
    """A running `vllm.LLM`; what keeps it from starting is one sentence, vLLM's log says more."""
    from vllm import LLM

    try:
        return LLM(model=folder, dtype=dtype, **arguments)
    except Exception as error:  # the many ways in which an engine fails to start
        raise UserError(
            f"vLLM did not start ({first_line(error)}). Its log above names the cause; correct"
            " engine.arguments in params.yaml."
        ) from error


def check_source(role: str, source: ModelSource) -> None:
    """Refuse models that vLLM is not given."""
    kind = source.quantise
    if source.gguf_file:
        kind = "a GGUF file"
    if kind != "none":
        raise UserError(
            f"The {role} {source.model} is {kind}, which vLLM is not given. Name safetensors"
            f" without quantise in the file of the pair, {REMEDY}"
        )


def folder_of(source: ModelSource) -> str:
    """The folder of a model; one from the hub is fetched, where the hub may be asked."""
    if source.is_folder:
        return str(Path(source.model).resolve())
    patterns = [*PARTS, *TOKENIZER_FILES]
    return or_refuse(
        "model",
        source.model,
        lambda: snapshot_download(source.model, revision=source.revision, allow_patterns=patterns),
        revision=source.revision,
    )
