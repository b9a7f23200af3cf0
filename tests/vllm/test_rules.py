"""Every rule inside vLLM writes what it writes in our own decoder, and counts the same loose tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from gistgate.block import Reason
from gistgate.decoding.decoder import Decoder
from gistgate.drafters import ModelDrafter
from gistgate.gates.gate import Gate
from gistgate.rules import make_rule
from gistgate.rules.pair_counts import PairCounts

pytestmark = pytest.mark.vllm

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


def configuration(rule: str, place: Path) -> dict[str, Any]:
    """A rule as a server's configuration."""
    value: dict[str, Any] = {"rule": rule, "settings": dict(RULES[rule]), "loop_guard": False}
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


def own_answers(rule: str, place: Path, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Ids and loose tokens of our decoder, given the first token too: vLLM takes that one from the prefill."""
    target, draft = (
        LlamaForCausalLM.from_pretrained(place / name, dtype=torch.float32) for name in ("target", "draft")
    )
    settings = configuration(rule, place)["settings"]
    if rule == "csd":
        settings["counts"] = PairCounts.load(settings["counts"])
    gate = Gate.load(place / "gate") if rule == "autojudge" else None
    decoder = Decoder(target, ModelDrafter(draft), make_rule(rule, **settings), 5, gate=gate)
    answers = [decoder.generate([prompt], max_new_tokens=50)[0] for prompt in prompts]
    # At the end of an answer ours drafts less, so both are compared before that.
    return [answer.ids[:39] for answer in answers], [answer.reasons[:39].count(Reason.LOOSE) for answer in answers]


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_ids_and_loose_counts_are_those_of_our_decoder(
    ask: Any, requests: list[dict[str, Any]], place: Path, runner: str
):
    """The unpatched engine, the closed gate, the open gate, and each rule, all greedy in float32."""
    write_counts(place)
    values = [OPEN, None, CLOSED, *(configuration(rule, place) for rule in RULES)]
    opened, plain, closed, *ruled = ask([(value, requests) for value in values], runner=runner)
    assert closed["ids"] == plain["ids"] and opened["ids"] != plain["ids"]
    assert opened["metrics"]["accepted_tokens"] == opened["metrics"]["draft_tokens"] > 0
    assert sum(counts["loose"] for counts in closed["counts"]) == 0
    prompts = [[*request["prompt"], ids[0]] for request, ids in zip(requests, plain["ids"], strict=True)]
    for rule, found in zip(RULES, ruled, strict=True):
        ids, loose = own_answers(rule, place, prompts)
        assert [answer[1:] for answer in found["ids"]] == ids, rule
        assert sum(loose) > 0, rule
        for counts, ours in zip(found["counts"], loose, strict=True):
            assert ours <= counts["loose"] <= ours + 4, rule  # vLLM cuts the last block after it was counted
