"""Other ways to draft, and two tensor-parallel processes: a closed gate changes nothing, an open one is really open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.vllm.rules import CLOSED, OPEN, RULES, configuration

pytestmark = pytest.mark.vllm

NGRAM = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def write_eagle(place: Path) -> Path:
    """An EAGLE head made of the target's first layer and a random projection; it seldom hits."""
    folder = place / "eagle"
    folder.mkdir(exist_ok=True)
    config = json.loads((place / "target" / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(place / "target" / "model.safetensors")
    kept = {name.removeprefix("model."): value for name, value in weights.items() if ".layers.0." in name}
    width = config["hidden_size"]
    del kept["layers.0.input_layernorm.weight"]  # EAGLE's first layer has none
    kept["fc.weight"] = torch.cat([torch.eye(width), 0.1 * torch.randn(width, width)], dim=1)
    kept["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    save_file({name: value.contiguous() for name, value in kept.items()}, folder / "model.safetensors")
    return folder


def test_eagle(ask: Any, requests: list[dict[str, Any]], place: Path):
    speculation = {"method": "eagle", "model": str(write_eagle(place))}
    opened, plain, closed = ask([(OPEN, requests), (None, requests), (CLOSED, requests)], speculation=speculation)
    assert closed["ids"] == plain["ids"] != opened["ids"]
    assert opened["metrics"]["accepted_tokens"] == opened["metrics"]["draft_tokens"] > 0


def test_lookup_in_a_process_of_its_own(ask: Any, requests: list[dict[str, Any]]):
    """The worker loads the plug-in by its entry point. The two prompts repeat themselves, so that much is drafted."""
    repeating = [{"prompt": request["prompt"][:4] * 5} for request in requests]
    plain, closed, opened = (
        ask([(value, repeating)], speculation=NGRAM, alone=False)[0] for value in (None, CLOSED, OPEN)
    )
    assert closed["ids"] == plain["ids"] != opened["ids"]
    assert closed["metrics"] == plain["metrics"]
    assert opened["metrics"]["accepted_tokens"] == opened["metrics"]["draft_tokens"] > 0


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_nothing_is_drafted_while_many_requests_run(ask: Any, requests: list[dict[str, Any]], place: Path, runner: str):
    """vLLM's own schedule. Most requests end soon; the rest are strict until then and judged afterwards."""
    short, long = 8, 40
    crowd = [{**one, "params": {"max_tokens": long if number < 2 else short}} for number, one in enumerate(requests)]
    schedule = [[1, 4, 5], [5, 1000, 0]]
    speculation = {
        "method": "draft_model", "model": str(place / "draft"), "num_speculative_tokens_per_batch_size": schedule
    }  # fmt: skip
    phases = [(OPEN, crowd), (None, crowd), (CLOSED, crowd)]
    opened, plain, closed = ask(phases, speculation=speculation, runner=runner)
    assert closed["ids"] == plain["ids"]
    assert [ids[:short] for ids in opened["ids"]] == [ids[:short] for ids in plain["ids"]]
    assert opened["ids"][:2] != plain["ids"][:2]
    assert 0 < opened["metrics"]["accepted_tokens"] == opened["metrics"]["draft_tokens"] < 2 * long


def test_two_tensor_parallel_processes_write_what_one_writes(ask: Any, requests: list[dict[str, Any]], place: Path):
    """A gate on hidden states; both ranks obey the first one's mask."""
    phases = [(configuration("autojudge", RULES["autojudge"], place), requests)]
    (one,), (two,) = ask(phases), ask(phases, tensor_parallel=2, alone=False)
    assert two["ids"] == one["ids"]
    assert two["counts"] == one["counts"]
