"""Features from an engine's states are those that the decoder's own blocks have."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.features import tap
from gistgate.core.utils import UserError
from pipeline.labels.schema import num_rows
from pipeline.labels.vllm import StateFeatures, load_output_layer, numbers_of
from pipeline.pair.pair import ModelSource
from tests.architectures import tiny_model
from tests.pipeline.labels.test_features import NAMES, again, pair, prompts, recorded  # noqa: F401


def saved(model: Any, folder: Path) -> ModelSource:
    model.save_pretrained(folder)
    return ModelSource(str(folder), dtype="float32", device="cpu")


def states_of(model: Any, numbers: list[int]) -> Any:
    """What vLLM dumps: outputs of layers, the last one in front of the normalisation."""

    @torch.no_grad()
    def one(text: list[int]) -> torch.Tensor:
        seen = {}
        hooks = [
            layer.register_forward_hook(
                lambda _module, _given, out, at=at: seen.update({at: out[0]})
            )
            for at, layer in enumerate(model.model.layers, 1)
        ]
        model(torch.tensor([text]))
        for hook in hooks:
            hook.remove()
        return torch.stack([seen[number] for number in numbers], dim=1)

    return lambda texts: [one(text) for text in texts]


def test_they_equal_those_of_the_decoder(tmp_path, pair, prompts, recorded, again):  # noqa: F811
    table, texts = recorded
    numbers = numbers_of(NAMES, pair.target.config.num_hidden_layers)
    output = load_output_layer(saved(pair.target, tmp_path))
    reader = StateFeatures(
        states_of(pair.target, numbers), output, pair.draft, prompts, NAMES, numbers, 259
    )
    features = reader.read(table, texts, 23)
    assert num_rows(features) == num_rows(table)
    assert features.keys() == {*NAMES, "kl", "same_target"}
    for name, column in again.items():
        torch.testing.assert_close(features[name].float(), column.float(), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "qwen3", "phi"])
@torch.no_grad()
def test_the_end_of_a_model_is_read_alone(tmp_path, architecture):
    """The stored normalisation is not one of ones, and where the output layer has a bias, it gets
    that too.
    """
    model = tiny_model(architecture)
    ids = torch.tensor([[1, 2, 3, 4]])
    if architecture == "phi":
        model.lm_head.bias.normal_()
    if architecture == "llama":
        model.model.norm.weight.mul_(3.0)
    norm, head = load_output_layer(saved(model, tmp_path))
    with tap(model, ["pre", "post"]) as seen:
        logits = model(ids).logits
    torch.testing.assert_close(norm(seen["pre"]), seen["post"])
    torch.testing.assert_close(head(seen["post"]), logits)


def test_what_cannot_be_read_from_states_is_refused(tmp_path):
    with pytest.raises(UserError, match="behind the output layer"):
        load_output_layer(saved(tiny_model("gemma2"), tmp_path))
    with pytest.raises(UserError, match="4 layers"):
        numbers_of(("h_tok:layer:4",), 4)
