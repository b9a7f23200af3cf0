"""A gate as MLflow loads it:
`mlflow.pyfunc.load_model("models:/gistgate@champion").predict(["Question: ..."],
params={"max_new_tokens": 160})` generates text. This file is stored beside the gate's folder;
nothing is pickled. Other models than those of the configuration are named by `load_model(..,
model_config={"target": "...", "draft": "..."})`.
"""

from typing import Any

import mlflow
import pandas

from gistgate.build import build
from gistgate.core.request import text_behind
from gistgate.models.loading import load_target
from gistgate.models.options import DecodeOptions


class GateModel(mlflow.pyfunc.PythonModel):
    """Decodes prompts with the certified setting of the gate."""

    def load_context(self, context: Any) -> None:
        """Load both models, and put the decoder together from them."""
        config = dict(context.model_config)
        target = load_target(config["target"], config["dtype"], gguf=config["target_gguf"])
        about_draft = ("draft", "draft_revision", "quantise_draft", "draft_vocabulary")
        named = {name: config[name] for name in about_draft if config[name] is not None}
        options = DecodeOptions(gate=context.artifacts["gate"], **named)
        self.config = config
        self.target = target
        self.decoder = build(target.model, target.tokenizer, options).decoder

    def predict(
        self,
        context: Any,
        model_input: pandas.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[str]:
        """One answer for each prompt; MLflow makes a table with one column of a list of prompts."""
        config = self.config
        target = self.target
        template = (config["chat"], config["system"], config.get("arguments"))
        prompts = [target.encode(prompt, *template) for prompt in model_input.iloc[:, 0]]
        limit = (params or {}).get("max_new_tokens") or config["max_new_tokens"]
        answers = self.decoder.generate(
            prompts, max_new_tokens=limit, stops=config["stops"], eos_ids=target.eos_ids
        )
        return [
            text_behind(target.tokenizer, prompt, answer.ids, skip_special_tokens=True)
            for prompt, answer in zip(prompts, answers)
        ]


mlflow.models.set_model(GateModel())
