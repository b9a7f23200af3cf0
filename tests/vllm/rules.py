"""Rules as a server's configuration and in our own decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from gistgate.core.block import Reason
from gistgate.core.decoder import Decoder
from gistgate.core.gate import Gate
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from gistgate.rules.history import PairCounts

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
NUM = 23
"""Tokens of an answer that are compared."""


def configuration(rule: str, settings: dict[str, Any], place: Path) -> dict[str, Any]:
    """A rule as a server's configuration."""
    value: dict[str, Any] = {"rule": rule, "settings": dict(settings), "loop_guard": False}
    if rule == "autojudge":
        value["gate"] = str(place / "gate")
    if rule == "csd":
        value["settings"]["counts"] = str(place / "counts.safetensors")
    return value


def write_counts(place: Path) -> None:
    """Every pair of tokens whose sum is even."""
    x, t = torch.cartesian_prod(torch.arange(259), torch.arange(259)).T
    counts, even = PairCounts(), (x + t) % 2 == 0
    counts.add(x[even], t[even])
    counts.save(place / "counts.safetensors")


def own_answers(
    rule: str, settings: dict[str, Any], place: Path, prompts: list[list[int]]
) -> tuple[list[list[int]], list[int]]:
    """Ids and loose tokens of our decoder. At the end of an answer ours drafts less, so it writes a little more."""
    pair = [LlamaForCausalLM.from_pretrained(place / name, dtype=torch.float32) for name in ("target", "draft")]
    if rule == "csd":
        settings = {**settings, "counts": place / "counts.safetensors"}
    gate = Gate.load(place / "gate") if rule == "autojudge" else None
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule(rule, **settings), 5, gate=gate)
    answers = [decoder.generate([prompt], max_new_tokens=NUM + 10)[0] for prompt in prompts]
    return [answer.ids[:NUM] for answer in answers], [answer.reasons[:NUM].count(Reason.LOOSE) for answer in answers]


def check_rule(rule: str, settings: dict[str, Any], found: dict[str, Any], place: Path, requests: Any) -> None:
    """Compare answers of vLLM with ours. vLLM takes the first token from the prefill, so ours is given it."""
    prompts = [[*request["prompt"], ids[0]] for request, ids in zip(requests, found["ids"], strict=True)]
    ids, loose = own_answers(rule, settings, place, prompts)
    assert [answer[1:] for answer in found["ids"]] == ids
    assert sum(loose) > 0
    for counts, ours in zip(found["counts"], loose, strict=True):
        assert ours <= counts["loose"] <= ours + 4  # vLLM cuts the last block after it was counted
