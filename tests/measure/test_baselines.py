"""transformers' own ways to decode write what our decoder writes, each with its own settings and at
its best K.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GenerationConfig

from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.measure import baselines
from gistgate.measure.baselines import ASSISTED, DEFAULTS, KS, LOOKUP, theirs, written
from gistgate.measure.speed import Contender, Timed, contender
from gistgate.rules import make_rule
from tests.architectures import greedy, noisy_copy, pair, prompts, tiny_model

REQUEST: dict[str, Any] = {"max_new_tokens": 12, "eos_ids": [], "stops": []}
WAYS = [{}, {"block": 3}, {"prompt_lookup_num_tokens": 3}]


def models_of(target: Any, draft: Any) -> SimpleNamespace:
    return SimpleNamespace(target=target, draft=draft, tokenizer=None)


@pytest.mark.parametrize(
    "ids, pad, counted",
    [
        ([5, 6, 2, 2, 2], 2, 3),
        ([5, 6, 2, 0, 0], 0, 3),
        ([5, 6, 7], 0, 3),
        ([5, 6, 0], 0, 2),  # a stop string ended it
    ],
)
def test_an_answer_ends_with_its_first_end_token(ids: list[int], pad: int, counted: int):
    assert written(ids, [2], pad=pad) == counted


@pytest.mark.parametrize("way", WAYS)
def test_both_count_the_same_tokens(way: dict[str, int]):
    target, draft = pair("llama")
    batch = prompts(7, 9)
    request = {**REQUEST, "eos_ids": [greedy("llama", tuple(batch[0]), 12)[5]]}
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 3)
    ours = contender("ours", decoder, request)
    library = Contender("library", theirs(models_of(target, draft), request, **way), 3)
    for ids in batch:
        run = ours.timed([ids])
        reference = library.timed([ids])
        assert run.tokens == reference.tokens and reference.statistics is None
        assert run.statistics and run.statistics.forwards and run.seconds > 0


@pytest.mark.parametrize("way", WAYS)
def test_what_a_models_own_configuration_asks_of_generate_is_left_out(way: dict[str, int]):
    """A penalty would change the text, and with it the speed; ours does not read it either."""
    target, draft = copy.deepcopy(pair("llama"))
    for model in (target, draft):
        model.generation_config.repetition_penalty = 1.8
    ids = prompts(9)[0]
    decode = theirs(models_of(target, draft), REQUEST, **way)
    assert decode([ids])[0] == [greedy("llama", tuple(ids), 12)]
    assert target.generation_config.repetition_penalty == 1.8


def test_the_fastest_on_development_prompts_is_taken(monkeypatch: pytest.MonkeyPatch):
    seconds = {2: [3.0, 1.0], 3: [1.2, 1.0], 4: [1.0, 1.1], 6: [1.1, 0.9]}  # by K
    variants = [Contender(f"K {k}", lambda batch: ([[1, 2]], None), k) for k in seconds]

    def race(field: Any, batches: Any) -> Any:
        assert field == variants and batches == [[[1, 2]], [[3]]]
        runs = {f"K {k}": [Timed(each, [[1]]) for each in times] for k, times in seconds.items()}
        return [{name: [timed[turn]] for name, timed in runs.items()} for turn in (0, 1)]

    monkeypatch.setattr(baselines, "race", race)
    assert baselines.fastest(variants, [[1, 2], [3]]) is variants[3]


def test_every_variant_writes_the_greedy_text_with_its_own_settings():
    target = tiny_model("llama")
    models = models_of(target, noisy_copy(target, 0.03))
    ids = prompts(9)[0]
    variants = baselines.speculation(models, REQUEST)
    assert {variant.block for variant in variants[ASSISTED]} == {*KS, DEFAULTS}
    answer = greedy("llama", tuple(ids), 12)
    assert variants[LOOKUP][0].decode([ids])[0] == [answer]
    usual = GenerationConfig()
    for variant in variants[ASSISTED]:
        assert variant.decode([ids])[0] == [answer]
        settings = models.draft.generation_config  # as the call left it
        if variant.block == DEFAULTS:
            assert settings.num_assistant_tokens == usual.num_assistant_tokens
            assert settings.num_assistant_tokens_schedule == usual.num_assistant_tokens_schedule
        else:
            assert settings.num_assistant_tokens == variant.block
            assert settings.num_assistant_tokens_schedule == "constant"
            assert settings.assistant_confidence_threshold == 0.0


def test_a_draft_with_a_padded_vocabulary_leaves_prompt_lookup():
    """transformers assists with equal vocabularies only; what does not run ends nothing, and its
    reason is kept.
    """
    models = models_of(tiny_model("llama"), tiny_model("llama", 300))
    able, failed = baselines.chosen(models, REQUEST, prompts(9))
    assert [contender.name for contender in able] == [LOOKUP]
    assert "different tokenizers" in failed[ASSISTED]
