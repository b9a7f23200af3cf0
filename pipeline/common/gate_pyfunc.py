"""A gate as MLflow loads it: it generates text. This file is stored beside the gate's folder; nothing is pickled.

    model = mlflow.pyfunc.load_model("models:/gistgate@champion")
    model.predict(["Question: ..."], params={"max_new_tokens": 160})

Target and draft are named in the model's configuration and are loaded with the first prompt. Elsewhere they are named
by `load_model(..., model_config={"target": "...", "draft": "..."})`.
"""

from typing import Any

import mlflow

from gistgate.build.decoder import build_decoder
from gistgate.build.models import load_target
from gistgate.build.wishes import Wishes


class GateModel(mlflow.pyfunc.PythonModel):
    """Decodes prompts with the certified setting of the gate."""

    def load_context(self, context: Any) -> None:
        self.gate, self.config, self.decoder = context.artifacts["gate"], dict(context.model_config), None

    def load(self) -> None:
        """Load both models and put the decoder together."""
        config = self.config
        self.target = load_target(config["target"], config["dtype"], gguf=config["target_gguf"])
        wishes = Wishes(draft=config["draft"], draft_revision=config["draft_revision"], gate=self.gate)
        self.decoder = build_decoder(self.target.model, self.target.tokenizer, wishes)

    def predict(self, context: Any, model_input: list[str], params: dict[str, Any] | None = None) -> list[str]:
        """One answer for each prompt."""
        if self.decoder is None:
            self.load()
        config, asked = self.config, params or {}
        prompts = [self.target.encode(prompt, config["chat"], config["system"]) for prompt in model_input]
        answers = self.decoder.generate(
            prompts,
            max_new_tokens=asked.get("max_new_tokens") or config["max_new_tokens"],
            stops=config["stops"],
            eos_ids=self.target.eos_ids,
        )
        return [self.target.tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in answers]


mlflow.models.set_model(GateModel())
