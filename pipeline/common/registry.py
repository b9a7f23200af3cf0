"""The exported gate as a registered model: code beside weights, no pickle, an alias that names the current one."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

from pipeline.common import tracking
from pipeline.params import Params


def register_gate(params: Params, folder: str | Path, metrics: dict[str, Any] | None = None) -> str | None:
    """Register the gate in `folder` as a new version and move the alias to it; None where MLflow is absent.

    `mlflow.pyfunc.load_model("models:/gistgate@best").predict(features)` gives P(meaning kept) per row.
    """
    if importlib.util.find_spec("mlflow") is None:
        return None
    with tracking.run(params, "export", kind="export") as record:
        record.log_metrics(metrics or {})
        import mlflow

        warnings.filterwarnings("ignore", message=".*input example", category=UserWarning)
        with tracking.alone():
            info = mlflow.pyfunc.log_model(
                name="gate",
                python_model=str(Path(__file__).with_name("gate_pyfunc.py")),
                artifacts={"gate": str(Path(folder).resolve())},
                signature=signature(),
                pip_requirements=["gistgate", "torch", "safetensors", "numpy"],
                registered_model_name=tracking.MODEL,
            )
            version = str(info.registered_model_version)
            mlflow.MlflowClient().set_registered_model_alias(tracking.MODEL, tracking.ALIAS, version)
    return version


def signature() -> Any:
    """Rows of features in, one probability per row out; the number of features is the gate's own."""
    import numpy
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    return ModelSignature(
        inputs=Schema([TensorSpec(numpy.dtype("float32"), (-1, -1))]),
        outputs=Schema([TensorSpec(numpy.dtype("float32"), (-1,))]),
    )
