"""Contenders count what they wrote, alone and in batches, and ours writes as much as transformers does."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.speed import Contender, by_kind, ours, race, theirs, working, written
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

REQUEST = {"max_new_tokens": 12, "eos_ids": [], "stops": []}


@pytest.fixture
def models() -> SimpleNamespace:
    target, draft = pair("llama")
    return SimpleNamespace(target=target, draft=draft, tokenizer=None)


def test_an_answer_ends_with_its_first_end_token():
    assert written([5, 6, 2, 2, 2], [2], pad=2) == 3
    assert written([5, 6, 2, 0, 0], [2], pad=0) == 3
    assert written([5, 6, 7], [2], pad=0) == 3
    assert written([5, 6, 0], [2], pad=0) == 2  # a stop string ended it


@pytest.mark.parametrize("extra", [{}, {"block": 3}, {"prompt_lookup_num_tokens": 3}])
def test_both_count_the_same_tokens(models: SimpleNamespace, extra: dict[str, int]):
    ids = prompts(7, 9)
    end = greedy("llama", tuple(ids[0]), 12)[5]
    request = {**REQUEST, "eos_ids": [end]}
    decoder = Decoder(models.target, ModelDrafter(models.draft), make_rule("exact"), 3)
    mine = [Contender("ours", ours(decoder, request), 3).timed([row]) for row in ids]
    other = [Contender("theirs", theirs(models, request, **extra), 3).timed([row]) for row in ids]
    assert [one.tokens for one in mine] == [one.tokens for one in other]
    assert all(one.forwards and one.seconds > 0 for one in mine)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This runs on the eager engine")
def test_seconds_of_another_engine_are_not_taken(models: SimpleNamespace):
    """The second request falls back without another warning, and fails as the first did."""
    rule = make_rule("regret-budget")
    decoder = Decoder(models.target, ModelDrafter(models.draft), rule, 3, engine="compiled")
    contender = Contender("regret-budget", ours(decoder, REQUEST), 3)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be timed on the compiled engine: the rule 'regret-budget'"):
            contender.timed(prompts(7))


@pytest.mark.parametrize("extra", [{}, {"block": 3}, {"prompt_lookup_num_tokens": 3}])
def test_what_a_models_own_configuration_asks_of_generate_is_left_out(extra: dict[str, int]):
    """A penalty would change the text, and with it the speed; ours does not read it either."""
    target, draft = copy.deepcopy(pair("llama"))
    for model in (target, draft):
        model.generation_config.repetition_penalty = 1.8
    models = SimpleNamespace(target=target, draft=draft, tokenizer=None)
    ids = prompts(9)[0]
    assert theirs(models, REQUEST, **extra)([ids])[0] == [greedy("llama", tuple(ids), 12)]
    assert target.generation_config.repetition_penalty == 1.8


def test_a_batch_counts_all_its_rows(models: SimpleNamespace):
    ids = prompts(7, 9)
    alone = [answer for row in ids for answer in theirs(models, REQUEST)([row])[0]]
    assert theirs(models, REQUEST)(ids)[0] == alone and sum(map(len, alone)) == 24


def test_a_prompt_that_one_contender_answers_with_a_loop_is_dropped_from_all():
    def contender(name: str, looping: int, is_baseline: bool) -> Contender:
        return Contender(name, lambda batch: ([[7] * 4 if batch[0][0] == looping else [1, 2]], 1), 0, is_baseline)

    field = [contender("plain", 2, True), contender("loose", 0, False)]
    found = by_kind(field, race(field, [[[1]], [[2]], [[3]]], repeats=2))
    for one in (found["baselines"]["plain"], found["methods"]["loose"]):
        assert (one["tokens"], one["target_forwards"], one["loops"]) == ([2, 2], [1, 1], 1)
        assert [len(repeats) for repeats in one["seconds"]] == [2, 2]


def test_who_builds_programs_decodes_every_batch_before_its_clock_runs():
    decoded: dict[str, list[int]] = {"eager": [], "compiled": []}

    def contender(name: str) -> Contender:
        def decode(batch):
            decoded[name].append(batch[0][0])
            return [[1, 2]], 1

        return Contender(name, decode, 0, builds=name == "compiled")

    race([contender("eager"), contender("compiled")], [[[1]], [[2]], [[3]]])
    assert decoded == {"eager": [1, 1, 2, 3], "compiled": [1, 1, 1, 2, 2, 3, 3]}


def test_what_cannot_decode_is_a_result_with_its_reason():
    def broken(batch):
        raise RuntimeError("no kernel\nmore")

    able, failed = working([Contender("a", lambda batch: ([[1]], 1), 0), Contender("b", broken, 0)], [[1]])
    assert [one.name for one in able] == ["a"] and failed == {"b": "RuntimeError: no kernel"}


def test_whoever_watches_a_race_hears_of_every_batch_and_may_end_it():
    seen: list[int] = []

    def goes_on(times: dict[str, dict[str, Any]]) -> bool:
        seen.append(len(times["one"]["seconds"]))
        return len(seen) < 2

    one = Contender("one", lambda batch: ([[4]] * len(batch), 1), 0)
    assert race([one], [[[1]], [[2]], [[3]]], goes_on=goes_on)["one"]["target_forwards"] == [1, 1] and seen == [1, 2]
