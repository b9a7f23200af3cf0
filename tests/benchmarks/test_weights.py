"""What rounded weights of a draft change is counted along given answers, with the kernels of drafting."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from benchmarks import weights
from gistgate.errors import UserError
from gistgate.forward.quantised import KINDS, MOST_ROWS, quantise
from tests.architectures import tiny_model


def drafts() -> dict[str, Any]:
    model = tiny_model("llama")
    return {kind: quantise(deepcopy(model), kind) for kind in KINDS}


def test_agreement_is_counted_at_every_token_of_the_answers():
    models = {"none": tiny_model("llama"), "other": tiny_model("llama", seed=7)}
    prompt = [5, 6, 7]
    own = models["none"].generate(torch.tensor([prompt]), max_new_tokens=11, do_sample=False, eos_token_id=None)
    written = own[0, len(prompt) :].tolist()
    other = [(token + 1) % 50 for token in written]  # behind another token the model's choice may be another one
    found = weights.agreement(models, [(prompt, written), (prompt, other[:1])])
    assert found["none"] == {"of": 12, "draft": 12, "target": 11}
    guessed = models["other"](own).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    same = sum(one == token for one, token in zip(guessed, written, strict=True))
    assert found["other"] == {
        "of": 12,
        "draft": same + (guessed[0] == written[0]),
        "target": same + (guessed[0] == other[0]),
    }
    assert same < 12


def test_pieces_are_narrow_enough_for_packed_weights_and_change_no_choice():
    assert weights.PIECE <= MOST_ROWS
    model = tiny_model("llama")
    prompt, answer = [3, 4], list(range(10, 30))
    whole = model(torch.tensor([prompt + answer])).logits[0].argmax(-1)
    assert weights.choices(model, prompt, answer).tolist() == whole[len(prompt) - 1 : -1].tolist()


def test_all_calls_take_turns_and_ratios_are_relative_to_the_reference():
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in ("none", "int8")}
    times = weights.taking_turns(calls, 4)
    assert order == ["none", "int8"] * (weights.WARM + 4)
    assert {name: len(some) for name, some in times.items()} == {"none": 4, "int8": 4}
    assert weights.over({"none": [2.0, 2.0], "int8": [1.0, 1.0]}, "none") == {
        "int8": {"mean": 0.5, "low": 0.5, "high": 0.5}
    }


@torch.inference_mode()
def test_a_step_leaves_the_cache_as_it_found_it(monkeypatch: Any):
    made: list[DynamicCache] = []
    monkeypatch.setattr(weights, "DynamicCache", lambda config: made.append(DynamicCache(config=config)) or made[-1])
    call = weights.step(tiny_model("llama"), 2)
    for _ in range(2):
        assert call().shape == (2, 1)
        assert made[0].get_seq_length() == weights.CONTEXT


@torch.inference_mode()
def test_output_layers_have_their_size():
    models = drafts()
    layers = weights.output_layers(models, [16])
    assert set(layers) == {*KINDS, "16"}
    assert int(torch.isfinite(layers["16"]()).sum()) == 16
    assert torch.isfinite(layers["int4"]()).all()


def test_a_folder_without_answers_or_draft_is_refused(monkeypatch: Any, tmp_path: Any):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Run the stage `reference`"):
        weights.answers()
    pair = SimpleNamespace(name="alone")
    monkeypatch.setattr(weights, "read_params", lambda: SimpleNamespace(pair="alone"))
    monkeypatch.setattr(weights, "read_pair", lambda _name: SimpleNamespace(draft=None))
    with pytest.raises(UserError, match="no draft model to round"):
        weights.drafts_of(pair)  # type: ignore[arg-type]


def test_memory_counts_shared_weights_once():
    """An output layer may be the embedding; packed weights stand beside an unpacked copy."""
    models = drafts()
    sizes = {kind: weights.held(model) for kind, model in models.items()}
    tied = tiny_model("llama")
    tied.lm_head.weight = tied.model.embed_tokens.weight
    assert weights.held(tied) == sizes["none"] - tied.lm_head.weight.nbytes
    assert sizes["none"] < sizes["int4"] and sizes["none"] < sizes["int8"]
