"""A tiny pair with a gate on disk, and a way to let vLLM answer with it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gistgate.core.identity import gate_hash, identify_model, identify_tokenizer
from gistgate.gate import Gate, GateConfig
from tests.architectures import noisy_copy
from tests.certificates.proofs import certificate, point
from tests.tiny import byte_tokenizer, save_pair
from tests.vllm.rules import BLOCK, BUDGET, RULES, scope_of

collect_ignore = (
    []
    if find_spec("vllm")
    else ["test_answers.py", "test_engines.py", "test_pipeline.py", "test_server.py"]
)
"""Tests that need vLLM; `make test-vllm` builds the environment."""

WIDTH = 128
FEATURES = {
    "gate": {"h_tok:post": WIDTH, "h_pred:post": WIDTH, "scalars": 8},
    "inner": {"h_tok:layer:1": WIDTH},
    "asking": {"h_tok:post": WIDTH, "draft": 3},
}
"""Inputs of the gates: one that fits, one on an inner layer, one that reads q."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders target and draft, a random target and a noisy copy, and those of FEATURES with random
    heads.

    Beside the gate that fits lies a certificate of the pair.
    """
    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    target = LlamaForCausalLM(config).eval()
    save_pair(folder, target, noisy_copy(target, 0.03), byte_tokenizer())
    saved = identify_model(LlamaForCausalLM.from_pretrained(folder / "target", dtype=torch.float32))
    for name, features in FEATURES.items():
        gate = Gate(
            GateConfig(
                {"type": "linear"}, features, saved, None, identify_tokenizer(byte_tokenizer())
            )
        )
        torch.nn.init.normal_(gate.head.first.weight, std=0.1)
        gate.save(folder / name)
        if name == "gate":
            kept = point(BUDGET, settings=RULES["autojudge"])
            certificate(kept, block=BLOCK, scope=scope_of(folder, gate=gate_hash(gate))).save(
                folder / name
            )
    return folder


@pytest.fixture(scope="session")
def ask(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, Any]]]:
    """Let one engine answer `phases`, pairs of a configuration and requests."""

    def answers(phases: list[tuple[Any, list[dict[str, Any]]]], **job: Any) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("job")
        speculation = {"method": "draft_model", "model": str(place / "draft")}
        written = {
            "target": str(place / "target"),
            "block": BLOCK,
            "speculation": speculation,
            "cache": str(folder / "cache"),
            "phases": [{"gistgate": value, "requests": requests} for value, requests in phases],
            **job,
        }
        (folder / "job.json").write_text(json.dumps(written))
        command = [
            sys.executable,
            "-m",
            "tests.vllm.engine",
            str(folder / "job.json"),
            str(folder / "answers.json"),
        ]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        found: list[dict[str, Any]] = json.loads((folder / "answers.json").read_text())
        return found

    return answers


@pytest.fixture(scope="session")
def requests() -> list[dict[str, Any]]:
    """Eight prompts of different lengths."""
    generator = torch.Generator().manual_seed(3)
    return [
        {"prompt": torch.randint(3, 259, (6 + i,), generator=generator).tolist()} for i in range(8)
    ]
