"""transformers' speculation is timed at its best, which development prompts choose."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipeline.speed import KeptLaps
from transformers import GenerationConfig

from gistgate.measure import speed as baselines
from gistgate.measure.speed import DEFAULTS, Contender, Timed
from tests.architectures import greedy, noisy_copy, prompts, tiny_model

REQUEST: dict[str, Any] = {"max_new_tokens": 8, "eos_ids": []}
NAMES = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


def test_the_fastest_on_development_prompts_is_taken_and_what_is_lost_is_tried_no_further(
    monkeypatch: pytest.MonkeyPatch,
):
    taken = {
        2: [3.0],
        3: [1.2, 1.0, 1.0],
        4: [1.0, 1.1, 1.0],
        6: [1.1, 0.9, 1.0],
    }  # seconds of each K
    seen: list[tuple[int, list[int]]] = []

    def lapped(field: Any, batch: Any, turns: Any) -> Any:
        seen.extend((one.block, ids) for one in field for ids in batch)
        return {one.name: [Timed(taken[one.block][turns[0]], 1, 1, False)] for one in field}

    monkeypatch.setattr(baselines, "lap", lapped)
    variants = [Contender("assisted", lambda batch: ([], None), k) for k in taken]
    assert baselines.fastest(variants, [[1, 2], [3], [4]]) is variants[3]
    assert [block for block, ids in seen if ids == [3]] == [3, 4, 6] and len(seen) == 10


def test_every_variant_writes_the_greedy_text_with_its_own_settings():
    target = tiny_model("llama")
    pair = SimpleNamespace(target=target, draft=noisy_copy(target, 0.03), tokenizer=None)
    ids = prompts(9)[0]
    usual = GenerationConfig()
    assert {one.block for one in baselines.assisted(pair, REQUEST)} == {*baselines.KS, DEFAULTS}
    for one in (*baselines.assisted(pair, REQUEST), *baselines.prompt_lookup(pair, REQUEST)[:1]):
        assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 8)]
        if one.name == "assisted":
            found = [getattr(pair.draft.generation_config, name) for name in NAMES]  # as the last call left them
            own = [getattr(usual, name) for name in NAMES]
            assert found == (own if one.block == DEFAULTS else [one.block, "constant", 0.0])


def test_a_pair_without_a_draft_has_prompt_lookup_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(baselines, "fastest", lambda some, _ids: some[0])
    for draft, found in ((None, {"prompt-lookup": 2}), ("model", {"assisted": 2, "prompt-lookup": 2})):
        pair: Any = SimpleNamespace(target=None, draft=draft, tokenizer=None)
        assert baselines.chosen(pair, REQUEST, [[1]]) == (found, {})


def test_a_draft_with_a_padded_vocabulary_leaves_prompt_lookup():
    """transformers assists with equal vocabularies only; what does not run ends nothing, and its reason is kept."""
    pair: Any = SimpleNamespace(target=tiny_model("llama"), draft=tiny_model("llama", 300), tokenizer=None)
    blocks, failed = baselines.chosen(pair, REQUEST, prompts(9))
    assert set(blocks) == {"prompt-lookup"} and set(failed) == {"assisted"}
    assert "different tokenizers" in failed["assisted"]


def test_a_choice_of_an_earlier_start_is_kept(tmp_path: Path):
    pair: Any = SimpleNamespace(target=tiny_model("llama"), draft=None, tokenizer=None)
    kept = KeptLaps(tmp_path)
    kept.chosen("prompt-lookup", lambda: {"block": 77})
    assert baselines.chosen(pair, REQUEST, prompts(9), kept.chosen) == ({"prompt-lookup": 77}, {})
