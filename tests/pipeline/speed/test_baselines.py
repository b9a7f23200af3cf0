"""transformers' speculation is timed at its best, which development prompts choose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GenerationConfig

from pipeline.speed import baselines
from pipeline.speed.clock import DEFAULTS, Contender
from tests.architectures import greedy, noisy_copy, prompts, tiny_model

REQUEST: dict[str, Any] = {"max_new_tokens": 8, "eos_ids": []}
NAMES = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


def test_the_fastest_on_development_prompts_is_taken(monkeypatch: pytest.MonkeyPatch):
    seen: list[list[int]] = []

    def raced(field: Any, batches: Any) -> Any:
        seen.extend(ids for batch in batches for ids in batch)
        return {one.name: {"seconds": [[abs(one.block - 4)], [1.0]]} for one in field}

    monkeypatch.setattr(baselines, "race", raced)
    variants = [Contender("assisted", lambda batch: ([], None), k) for k in (2, 3, 4, 6)]
    assert baselines.fastest(variants, [[1, 2], [3]]) is variants[2]
    assert seen == [[1, 2], [3]]


def test_every_variant_writes_the_greedy_text_with_its_own_settings():
    target = tiny_model("llama")
    pair = SimpleNamespace(target=target, draft=noisy_copy(target, 0.03), tokenizer=None)
    ids = prompts(9)[0]
    usual = GenerationConfig()
    assert {one.block for one in baselines.assisted(pair, REQUEST)} == {*baselines.KS, DEFAULTS}
    for one in (*baselines.assisted(pair, REQUEST), *baselines.prompt_lookup(pair, REQUEST)[:1]):
        assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 8)]
        if one.name == "assisted":
            found = [getattr(pair.draft.generation_config, name) for name in NAMES]
            own = [getattr(usual, name) for name in NAMES]
            assert found == (own if one.block == DEFAULTS else [one.block, "constant", 0.0])


def test_a_pair_without_a_draft_has_prompt_lookup_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baselines, "fastest", lambda some, _ids: some[0])
    for draft, found in ((None, {"prompt-lookup": 2}), ("model", {"assisted": 2, "prompt-lookup": 2})):
        pair: Any = SimpleNamespace(target=None, draft=draft, tokenizer=None)
        assert baselines.chosen(pair, REQUEST, [[1]]) == found
