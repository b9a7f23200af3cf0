"""Rules as a server's configuration and in our own decoder."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from gistgate.core.block import Reason
from gistgate.core.decoder import Decoder
from gistgate.core.identity import identify_model, identify_tokenizer, model_scope
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate
from gistgate.rules import make_rule
from gistgate.rules.history import PairCounts
from tests.tiny import byte_tokenizer

BLOCK = 5
OPEN = {"rule": "prob", "settings": {"r": 1e-30}, "loop_guard": False}
CLOSED = {"rule": "prob", "settings": {"r": 1.0}}
RULES: dict[str, dict[str, Any]] = {
    "prob": {"r": 0.1},
    "prob-ratio": {"r": 0.3},
    "typical": {"greedy": "raw"},
    "fly": {"theta": 0.3, "window": 1},
    "trt-relaxed": {"delta": 0.3, "k": 3, "scope": "all"},
    "csd": {"tau_c": 0.3, "min_count": 0},
    "autojudge": {"risk": 0.5},
}
BUDGET = 0.03
"""Loss for which the gate has a certificate, at the setting of `autojudge` in RULES."""
NUM = 24
"""Tokens of an answer that are compared."""


def scope_of(place: Path, **changes: Any) -> dict[str, Any]:
    """The scope of a certificate of the pair."""
    pair = {
        name: LlamaForCausalLM.from_pretrained(place / name, dtype=torch.float32)
        for name in ("target", "draft")
    }
    models = {name: model_scope(identify_model(model)) for name, model in pair.items()}
    vocabulary = identify_tokenizer(byte_tokenizer()).vocabulary
    return {
        **models,
        "tokenizer": vocabulary,
        "gate": None,
        "drafter": "model",
        "block": BLOCK,
        **changes,
    }


def settings_of(rule: str, place: Path) -> dict[str, Any]:
    """Settings of a rule; the counts of `csd` are written on the way: every pair of tokens whose
    sum is even.
    """
    if rule != "csd":
        return {"w": 0.4} if rule == "ensemble" else RULES[rule]
    x, t = torch.cartesian_prod(torch.arange(259), torch.arange(259)).T
    counts, even = PairCounts(), (x + t) % 2 == 0
    counts.add(x[even], t[even])
    counts.save(place / "counts.safetensors")
    return {**RULES[rule], "counts": str(place / "counts.safetensors")}


def configuration(rule: str, place: Path) -> dict[str, Any]:
    """A rule as a server's configuration."""
    gate = {"gate": str(place / "gate")} if rule == "autojudge" else {}
    return {"rule": rule, "settings": settings_of(rule, place), "loop_guard": False, **gate}


def check_rule(
    rule: str, found: dict[str, Any], place: Path, requests: list[dict[str, Any]], **more: Any
) -> None:
    """Compare answers of vLLM with ours. vLLM takes the first token from the prefill, so ours goes
    on behind it.

    At the end of an answer ours drafts less, so it writes a little more.
    """
    pair = [
        LlamaForCausalLM.from_pretrained(place / name, dtype=torch.float32)
        for name in ("target", "draft")
    ]
    gate = Gate.load(place / "gate") if rule == "autojudge" else None
    decoder = Decoder(
        pair[0],
        ModelDrafter(pair[1]),
        make_rule(rule, **settings_of(rule, place)),
        BLOCK,
        gate=gate,
        **more,
    )
    prompts = [request["prompt"] for request in requests]
    begun = [(len(prompt), ids[:1]) for prompt, ids in zip(prompts, found["ids"], strict=True)]
    ours = decoder.resume(
        decoder.remember(prompts), begun, [*map(len, prompts)], max_new_tokens=NUM + 10
    )
    num_loose = 0
    for (answer, _), ids, counts in zip(ours, found["ids"], found["counts"], strict=True):
        assert ids == answer.ids[:NUM]
        loose = answer.reasons[1:NUM].count(Reason.LOOSE)
        assert (
            loose <= counts["loose"] <= loose + 4
        )  # vLLM cuts the last block after it was counted
        num_loose += loose
    assert num_loose > 0
