"""A gate as MLflow loads it. This file is stored beside the gate folder; nothing is pickled."""

from typing import Any

import mlflow
import numpy
import torch

from gistgate.gates.gate import Gate


class GateModel(mlflow.pyfunc.PythonModel):
    """P(meaning kept) for rows of features, in the order that the gate's config.json lists."""

    def load_context(self, context: Any) -> None:
        self.gate = Gate.load(context.artifacts["gate"])

    def predict(self, context: Any, model_input: numpy.ndarray, params: dict[str, Any] | None = None) -> numpy.ndarray:
        """`model_input [N, F]` float32 -> probabilities [N] float32."""
        with torch.no_grad():
            return self.gate.probability(torch.from_numpy(model_input)).numpy()


mlflow.models.set_model(GateModel())
