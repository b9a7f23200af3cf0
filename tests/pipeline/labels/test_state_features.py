"""Features from an engine's states are those that the decoder's own blocks have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.utils import UserError
from pipeline.labels.features import FeatureReader
from pipeline.labels.schema import num_rows
from pipeline.labels.vllm import StateFeatures, load_output_layer, numbers_of, served_features
from pipeline.pair.pair import ModelSource
from tests.architectures import tiny_model
from tests.core.watching import head_inputs, in_one_piece
from tests.pipeline.labels.test_features import BLOCK, NAMES, REQUEST, pair, prompts, recorded  # noqa: F401


def saved(model: Any, folder: Path) -> ModelSource:
    model.save_pretrained(folder)
    return ModelSource(str(folder), dtype="float32", device="cpu")


def states_of(model: Any, numbers: list[int]) -> Any:
    """What vLLM dumps: outputs of layers, the last one in front of the normalisation."""

    @torch.no_grad()
    def one(text: list[int]) -> torch.Tensor:
        seen = {}
        hooks = [
            layer.register_forward_hook(lambda _module, _given, out, at=at: seen.update({at: out[0]}))
            for at, layer in enumerate(model.model.layers, 1)
        ]
        model(torch.tensor([text]))
        for hook in hooks:
            hook.remove()
        return torch.stack([seen[number] for number in numbers], dim=1)

    return lambda texts: [one(text) for text in texts]


@pytest.mark.parametrize("name", [*NAMES, "kl", "same_target"])
def test_they_equal_those_of_the_decoder(tmp_path, pair, prompts, recorded, name):  # noqa: F811
    table, texts = recorded
    numbers = numbers_of(NAMES, pair.target.config.num_hidden_layers)
    output = load_output_layer(saved(pair.target, tmp_path))
    reader = StateFeatures(states_of(pair.target, numbers), output, pair.draft, prompts, NAMES, numbers, 259)
    found = reader.read(table, texts, 23)
    expected = FeatureReader(pair, prompts, NAMES, BLOCK).read(table, texts, 23, **REQUEST)
    assert num_rows(found) == num_rows(table)
    torch.testing.assert_close(found[name].float(), expected[name].float(), rtol=1e-4, atol=2e-4)


def test_the_drafts_output_layer_reads_states_in_one_piece(pair, prompts):  # noqa: F811
    reader = StateFeatures(None, None, pair.draft, prompts, NAMES, [2], 250)
    text = [5, 6, 7, 8, 9, 10]
    with torch.no_grad(), head_inputs(pair.draft) as seen:
        found = reader.draft_probs([text[:2], text[:4]], [text[:5], text], 3)
        expected = pair.draft(torch.tensor([text[:-1]])).logits[0, :, :250].softmax(-1)
    assert [states.shape[1] for states in seen[:2]] == [3, 2] and all(in_one_piece(states) for states in seen)
    torch.testing.assert_close(found, torch.stack([expected[1:4], torch.cat([expected[3:], 0 * expected[:1]])]))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "qwen3"])
def test_the_end_of_a_model_is_read_alone(tmp_path, architecture):
    model = tiny_model(architecture)
    output = load_output_layer(saved(model, tmp_path))
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        post = model.base_model(ids).last_hidden_state
        torch.testing.assert_close(output.logits(post), model(ids).logits)


def test_an_output_layer_with_a_bias_gets_both(tmp_path):
    model = tiny_model("phi")
    with torch.no_grad():
        model.lm_head.bias.normal_()
    output = load_output_layer(saved(model, tmp_path))
    assert torch.equal(output.head.bias, model.lm_head.bias) and torch.equal(output.head.weight, model.lm_head.weight)


def test_a_normalisation_of_ones_is_not_taken_for_the_stored_one(tmp_path):
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight.mul_(3.0)
    output = load_output_layer(saved(model, tmp_path))
    pre = torch.randn(2, 32)
    torch.testing.assert_close(output.post(pre), model.model.norm(pre))


def test_weights_that_are_not_there_are_named(tmp_path):
    source = saved(tiny_model("llama"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match="engine.states to own"):
        load_output_layer(source)


def test_logits_that_are_more_than_the_output_layer_are_refused(tmp_path):
    with pytest.raises(UserError, match="behind the output layer"):
        load_output_layer(saved(tiny_model("gemma2"), tmp_path))


def test_a_layer_that_the_target_lacks_is_refused():
    assert numbers_of(("h_tok:layer:0", "h_pred:post", "scalars"), 4) == [1, 4]
    with pytest.raises(UserError, match="4 layers"):
        numbers_of(("h_tok:layer:4",), 4)


def test_an_engine_needs_one_worker():
    params = SimpleNamespace(decoding=SimpleNamespace(workers=2))
    with pytest.raises(UserError, match="decoding.workers to 1"):
        served_features(params, None, [], [])  # type: ignore[arg-type]
