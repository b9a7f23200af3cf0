"""Sampled requests: under every rule that can be a program, both engines draw the same tokens for the same reasons."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import RULES, make_rule
from tests.architectures import pair, prompts
from tests.compiled.test_fall_back import FALLS_BACK
from tests.core.test_independence import seen
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE, LOSSLESS

FEW = 24
"""Ids of a vocabulary in which prompt lookup finds something at every turn."""
BATCH = prompts(5, 17, 1, 10, vocabulary=FEW)
SEEDS = [3, 1, 4, 1]
NUM = 20
WHOLE, CUT = Sampling(0.9), Sampling(1.2, top_k=12, top_p=0.95)
"""The second one forbids tokens that are drafted all the same."""
AS_USUAL: list[tuple[str, dict[str, Any]]] = [
    (name, LOOSE.get(name, {}))
    for name, rule in RULES.items()
    if rule.temperatures != "greedy" and (name == "csd" or name not in FALLS_BACK)
]
"""Rules that are programs; of `csd` only an online table is none."""
REPLACING: list[tuple[str, dict[str, Any]]] = [
    ("typical", {"superset": False, "scale": 0.3}),
    ("ensemble", {"w": 0.2, "superset": False}),
    ("fsd", {"threshold": 0.2, "reduced": False, "replacement": "p"}),
    ("sgl-threshold", {"acc": 0.02}),
]
"""Settings that stand in place of the strict test and draw the own token in another way."""


def answers(engine: str, drafter: str, rule: Any, block: int, sampling: Sampling) -> list[Any]:
    """What an engine writes and counts; falling back is an error."""
    target, draft = pair("llama", FEW, noise=0.1)
    made: Any = ModelDrafter(draft) if drafter == "model" else PromptLookup()
    decoder = Decoder(target, made, rule, block, gate=HalfGate(), tokenizer=Markers(), engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        done = decoder.generate(BATCH, max_new_tokens=NUM, sampling=sampling, seeds=SEEDS, eos_ids={23})
    assert not decoder.engine.fell_back
    return seen(done)


@pytest.mark.parametrize(
    ("rule_id", "settings", "drafter", "sampling"),
    [
        (rule_id, settings, drafter, sampling)
        for rule_id, settings in AS_USUAL + REPLACING
        for drafter, sampling in (("model", WHOLE), ("model", CUT), ("lookup", CUT))
        if drafter == "model" or "q" not in RULES[rule_id].needs
    ],
)
def test_every_rule_draws_the_same_tokens(
    traced: None, rule_id: str, settings: dict[str, Any], drafter: str, sampling: Sampling
):
    rule = make_rule(rule_id, **settings)
    eager, programs = (answers(engine, drafter, rule, 4, sampling) for engine in ("eager", "compiled"))
    assert programs == eager
    assert any(counts["loose"] for *_, counts in eager) == (rule_id not in LOSSLESS)


def test_the_last_settings_replace_the_strict_test():
    assert not any(make_rule(rule_id, **settings).superset for rule_id, settings in REPLACING)
