"""A race counts what was written, drops loops for everybody, and times transformers' speculation at
its best.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from transformers import GenerationConfig

from gistgate.cli.show import timed
from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Statistics
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure import speed
from gistgate.measure.speed import (
    ASSISTED,
    DEFAULTS,
    LOOKUP,
    Contender,
    Timed,
    contender,
    race,
    theirs,
    times_of,
)
from gistgate.rules import make_rule
from tests.architectures import greedy, noisy_copy, pair, prompts, tiny_model

REQUEST: dict[str, Any] = {"max_new_tokens": 12, "eos_ids": [], "stops": []}
EXTRAS = [{}, {"block": 3}, {"prompt_lookup_num_tokens": 3}]
BATCH = prompts(5, 9, 7)
NUM = 10


@pytest.fixture
def models() -> SimpleNamespace:
    target, draft = pair("llama")
    return SimpleNamespace(target=target, draft=draft, tokenizer=None)


def scripted(
    name: str, answers: Any = lambda batch: [[1, 2]] * len(batch), **more: Any
) -> Contender:
    """A contender that answers what is written down."""
    return Contender(name, lambda batch: (answers(batch), Statistics(forwards=1)), **more)


@pytest.mark.parametrize("ids, pad, counted", [
    ([5, 6, 2, 2, 2], 2, 3), ([5, 6, 2, 0, 0], 0, 3), ([5, 6, 7], 0, 3),
    ([5, 6, 0], 0, 2),  # a stop string ended it
])  # fmt: skip
def test_an_answer_ends_with_its_first_end_token(ids: list[int], pad: int, counted: int):
    assert speed.written(ids, [2], pad=pad) == counted


@pytest.mark.parametrize("extra", EXTRAS)
def test_both_count_the_same_tokens(models: SimpleNamespace, extra: dict[str, int]):
    ids = prompts(7, 9)
    request = {**REQUEST, "eos_ids": [greedy("llama", tuple(ids[0]), 12)[5]]}
    decoder = Decoder(models.target, ModelDrafter(models.draft), make_rule("exact"), 3)
    mine = [contender("ours", decoder, request).timed([row]) for row in ids]
    other = [Contender("theirs", theirs(models, request, **extra), 3).timed([row]) for row in ids]
    assert [one.tokens for one in mine] == [one.tokens for one in other]
    assert all(one.statistics and one.statistics.forwards and one.seconds > 0 for one in mine)
    assert all(one.statistics is None for one in other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This runs on the eager engine")
def test_seconds_of_another_engine_are_not_taken(models: SimpleNamespace):
    """The second request falls back without another warning, and fails as the first did."""
    rule = make_rule("regret-budget")
    decoder = Decoder(models.target, ModelDrafter(models.draft), rule, 3, engine="compiled")
    one = contender("regret-budget", decoder, REQUEST)
    for _ in range(2):
        with pytest.raises(
            UserError, match="cannot be timed on the compiled engine: the rule 'regret-budget'"
        ):
            one.timed(prompts(7))
    assert (
        contender("regret-budget", decoder, REQUEST, any_engine=True).timed(prompts(7)).tokens == 12
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_a_models_own_configuration_asks_of_generate_is_left_out(extra: dict[str, int]):
    """A penalty would change the text, and with it the speed; ours does not read it either."""
    target, draft = copy.deepcopy(pair("llama"))
    for model in (target, draft):
        model.generation_config.repetition_penalty = 1.8
    ids = prompts(9)[0]
    decode = theirs(SimpleNamespace(target=target, draft=draft, tokenizer=None), REQUEST, **extra)
    assert decode([ids])[0] == [greedy("llama", tuple(ids), 12)]
    assert target.generation_config.repetition_penalty == 1.8


def test_a_prompt_that_one_contender_answers_with_a_loop_is_dropped_from_all():
    def answers(looping: int) -> Any:
        return lambda batch: [[7] * 4 if batch[0][0] == looping else [1, 2]]

    field = [
        scripted("plain", answers(2), is_baseline=True, also=("exact",)),
        scripted("loose", answers(0)),
    ]
    found = speed.by_kind(field, times_of(field, race(field, [[[1]], [[2]], [[3]]], repeats=2)))
    assert set(found["baselines"]) == {"plain"} and set(found["methods"]) == {"exact", "loose"}
    for one in (found["baselines"]["plain"], found["methods"]["loose"]):
        assert (one["tokens"], one["target_forwards"], one["loops"]) == ([2, 2], [1, 1], 1)
        assert [len(repeats) for repeats in one["seconds"]] == [2, 2]


def test_who_builds_programs_decodes_every_batch_before_its_clock_runs():
    decoded: dict[str, list[int]] = {"eager": [], "compiled": []}

    def recorded(name: str) -> Contender:
        def answers(batch: Any) -> Any:
            decoded[name].append(batch[0][0])
            return [[1, 2]]

        return scripted(name, answers, builds=name == "compiled")

    race([recorded("eager"), recorded("compiled")], [[[1]], [[2]], [[3]]])
    assert decoded == {"eager": [1, 1, 2, 3], "compiled": [1, 1, 1, 2, 2, 3, 3]}


@pytest.mark.parametrize(("looping", "counted"), [((), 3), ((1,), 2), ((0, 1, 2), 3)])
def test_plain_strict_and_loose_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, looping: tuple[int, ...], counted: int
):
    target, draft = pair("llama")
    loops = [greedy("llama", tuple(BATCH[place]), NUM) for place in looping]
    monkeypatch.setattr(LoopGuard, "is_loop", lambda self, ids: ids in loops)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("prob", r=1e-9), 4)
    assert (
        decoder.generate(BATCH[1:2], max_new_tokens=NUM)[0].ids not in loops
    )  # the others loop, it does not
    (found, loops), console = (
        speed.side_by_side(decoder, BATCH, max_new_tokens=NUM),
        Console(width=100),
    )
    assert list(found) == ["plain", "strict", "prob"] and loops == len(looping)
    assert all(seconds > 0 and done.tokens == NUM * counted for seconds, done in found.values())
    with console.capture() as shown:
        console.print(timed(found, loops))
    assert ("1 prompts were answered with a loop" in shown.get()) == (len(looping) == 1)


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
        return {one.name: [Timed(taken[one.block][turns[0]], [[1]])] for one in field}

    monkeypatch.setattr(speed, "lap", lapped)
    variants = [scripted(ASSISTED, block=k) for k in taken]
    assert speed.fastest(variants, [[1, 2], [3], [4]]) is variants[3]
    assert [block for block, ids in seen if ids == [3]] == [3, 4, 6] and len(seen) == 10


def test_every_variant_writes_the_greedy_text_with_its_own_settings():
    target = tiny_model("llama")
    both = SimpleNamespace(target=target, draft=noisy_copy(target, 0.03), tokenizer=None)
    ids, usual, found = prompts(9)[0], GenerationConfig(), speed.speculation(both, REQUEST)
    names = (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
    )
    assert {one.block for one in found[ASSISTED]} == {*speed.KS, DEFAULTS}
    for one in (*found[ASSISTED], *found[LOOKUP][:1]):
        assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 12)]
        if one.name == ASSISTED:
            asked = [
                getattr(both.draft.generation_config, name) for name in names
            ]  # as the last call left them
            own = [getattr(usual, name) for name in names]
            assert asked == (own if one.block == DEFAULTS else [one.block, "constant", 0.0])


def test_a_draft_with_a_padded_vocabulary_leaves_prompt_lookup():
    """transformers assists with equal vocabularies only; what does not run ends nothing, and its
    reason is kept.
    """
    both: Any = SimpleNamespace(
        target=tiny_model("llama"), draft=tiny_model("llama", 300), tokenizer=None
    )
    found, failed = speed.chosen(both, REQUEST, prompts(9))
    assert [one.name for one in found] == [LOOKUP] and "different tokenizers" in failed[ASSISTED]
