"""A tiny pair, and a gate for it as it would be exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.export.write import write_code
from gistgate.gate import Gate, GateConfig
from tests.certificates.proofs import point, proof_for
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

PROMPTS = ["Q: 12 + 1?\nA:", "Anna has three red apples and buys two.", "x"]
EOS, PAD = 2, 0
RISKS = {0.03: 0.2, 0.05: 0.3}
"""Certified budget -> knob."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, draft/ and gate/, the last as it would be exported."""
    folder = tmp_path_factory.mktemp("export")
    target, draft = tiny_pair(noise=0.3)
    tokenizer = byte_tokenizer()
    save_pair(folder, target, draft, tokenizer)
    torch.manual_seed(0)
    config = GateConfig(
        head={"type": "mlp", "hidden_size": 8},
        features={"h_tok:post": 32, "h_pred:layer:0": 32, "scalars": 8},
        target=identify_model(target, "target"),
        draft=identify_model(draft, "draft"),
        tokenizer=identify_tokenizer(tokenizer, "target"),
    )
    gate = Gate(config)
    gate.map.a.fill_(
        12.0
    )  # a random head says nearly the same of every token: spread its opinions over (0, 1)
    gate.map.b.fill_(7.5)
    gate.save(folder / "gate", card="# A gate\n")
    proof_for(
        gate, *(point(budget, settings={"risk": risk}) for budget, risk in RISKS.items())
    ).save(folder / "gate")
    write_code(folder / "gate")
    return folder


@pytest.fixture(scope="module")
def pair(place: Path) -> Any:
    return tuple(AutoModelForCausalLM.from_pretrained(place / name) for name in ("target", "draft"))


@pytest.fixture(scope="module")
def tokenizer(place: Path) -> Any:
    return AutoTokenizer.from_pretrained(place / "target", padding_side="left")


@pytest.fixture(scope="module")
def gate(place: Path, pair: Any) -> Gate:
    return Gate.load(place / "gate", *pair)


@pytest.fixture(scope="module")
def inputs(tokenizer: Any) -> dict[str, Any]:
    return dict(tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False))
