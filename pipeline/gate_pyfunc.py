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
from gistgate.core.decoder import Decoder
from gistgate.core.request import text_behind
from gistgate.models.loading import Target, load_target
from gistgate.models.options import DecodeOptions


class GateModel(mlflow.pyfunc.PythonModel):
    """Decodes prompts with the certified setting of the gate."""

    def load_context(self, context: Any) -> None:
        self.gate = context.artifacts["gate"]
        self.config = dict(context.model_config)
        self.loaded: tuple[Target, Decoder] | None = None

    def load(self) -> tuple[Target, Decoder]:
        """Both models, and the decoder that is put together from them."""
        config = self.config
        target = load_target(config["target"], config["dtype"], gguf=config["target_gguf"])
        about_draft = ("draft", "draft_revision", "quantise_draft")
        named = {name: config[name] for name in about_draft if config[name] is not None}
        options = DecodeOptions(gate=self.gate, **named)
        return target, build(target.model, target.tokenizer, options).decoder

    def predict(
        self,
        context: Any,
        model_input: pandas.DataFrame,
        params: dict[str, Any] | None = None,
    ) -> list[str]:
        """One answer for each prompt; MLflow makes a table with one column of a list of prompts."""
        self.loaded = self.loaded or self.load()
        target, decoder = self.loaded
        config = self.config
        template = (config["chat"], config["system"], config.get("arguments"))
        prompts = [target.encode(prompt, *template) for prompt in model_input.iloc[:, 0]]
        limit = (params or {}).get("max_new_tokens") or config["max_new_tokens"]
        answers = decoder.generate(
            prompts, max_new_tokens=limit, stops=config["stops"], eos_ids=target.eos_ids
        )
        return [
            text_behind(target.tokenizer, prompt, answer.ids, skip_special_tokens=True)
            for prompt, answer in zip(prompts, answers)
        ]


mlflow.models.set_model(GateModel())
