"""The exported gate as a registered model: code beside weights, no pickle, an alias that names the current one."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from gistgate.files import read_json_lines
from pipeline.common import tracking
from pipeline.common.paths import prompts_of
from pipeline.pairs.source import ModelSource, PairSource, read_pair
from pipeline.params import Params


def register_gate(params: Params, folder: str | Path, metrics: dict[str, Any] | None = None) -> str | None:
    """Register the gate in `folder` as a new version and move the alias to it; None where MLflow is absent.

    `mlflow.pyfunc.load_model("models:/gistgate@champion").predict(["Question: ..."])` generates text.
    """
    if importlib.util.find_spec("mlflow") is None:
        return None
    if why := unnamed(read_pair(params.pair)):
        print(f"The gate is not registered in MLflow, because the registered model could not load {why}.")
        return None
    with tracking.run(params, "export", kind="export") as record:
        record.log_metrics(metrics or {})
        if (prompts := prompts_of("calibration")).is_file():
            record.log_data(prompts, "calibration")
        import mlflow

        warnings.filterwarnings("ignore", message=".*input example", category=UserWarning)
        with tracking.alone():
            info = mlflow.pyfunc.log_model(
                name="gate",
                python_model=str(Path(__file__).with_name("gate_pyfunc.py")),
                artifacts={"gate": str(Path(folder).resolve())},
                signature=signature(params.decoding.max_new_tokens),
                model_config=configuration(params),
                pip_requirements=["gistgate", "torch", "transformers", "safetensors"],
                registered_model_name=tracking.MODEL,
            )
            version = str(info.registered_model_version)
            mlflow.MlflowClient().set_registered_model_alias(tracking.MODEL, tracking.ALIAS, version)
    return version


def unnamed(source: PairSource) -> str | None:
    """What of a pair the configuration of a registered model cannot name; None where it names everything."""
    if source.target.revision is not None and not source.target.is_folder:
        return "the target's revision"
    if source.draft is not None and source.draft.gguf_file is not None:
        return "the draft's GGUF file"
    return None if source.tokenizer is None else "the pair's own tokenizer"


def configuration(params: Params) -> dict[str, Any]:
    """Which models the gate decodes with, and how prompts become answers; a user may name others when loading."""
    source, prompts = read_pair(params.pair), prompts_of("test")
    first = read_json_lines(prompts)[0] if prompts.is_file() else {}
    return {
        "target": place(source.target),
        "target_gguf": source.target.gguf_file,
        **drafting(source.draft),
        "dtype": source.target.dtype,
        "chat": params.prompting.chat_template,
        "system": params.prompting.system,
        "stops": list(first.get("stops", [])),
        "max_new_tokens": first.get("max_new_tokens", params.decoding.max_new_tokens),
    }


def drafting(draft: ModelSource | None) -> dict[str, Any]:
    """The draft model and how its weights are kept; None everywhere where the pair drafts without one."""
    if draft is None:
        return {"draft": None, "draft_revision": None, "quantise_draft": None}
    return {"draft": place(draft), "draft_revision": draft.revision, "quantise_draft": draft.quantise}


def place(source: ModelSource) -> str:
    """Hub id, or the folder by its whole path."""
    return str(Path(source.model).resolve()) if source.is_folder else source.model


def signature(max_new_tokens: int) -> Any:
    """Prompts in, answers out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    text = Schema([ColSpec(DataType.string)])
    limit = ParamSpec("max_new_tokens", DataType.long, max_new_tokens)
    return ModelSignature(inputs=text, outputs=text, params=ParamSchema([limit]))
