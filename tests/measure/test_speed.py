"""A race counts what was written, and drops loops for everybody."""

from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from gistgate.cli.show import timed
from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Statistics
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.speed import Contender, by_kind, contender, race, side_by_side, times_of
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

REQUEST: dict[str, Any] = {"max_new_tokens": 12, "eos_ids": [], "stops": []}
BATCH = prompts(5, 9, 7)
NUM = 10


def scripted(name: str, answers: Callable[[Any], Any], **more: Any) -> Contender:
    """A contender that answers what is written down."""
    return Contender(name, lambda batch: (answers(batch), Statistics(forwards=1)), **more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This runs on the eager engine")
def test_seconds_of_another_engine_are_not_taken():
    """The second request falls back without another warning, and fails as the first did."""
    target, draft = pair("llama")
    rule = make_rule("regret-budget")
    decoder = Decoder(target, ModelDrafter(draft), rule, 3, engine="compiled")
    strictly = contender("regret-budget", decoder, REQUEST)
    for _ in range(2):
        with pytest.raises(UserError, match="on the compiled engine: the rule 'regret-budget'"):
            strictly.timed(prompts(7))
    anyhow = contender("regret-budget", decoder, REQUEST, any_engine=True)
    assert anyhow.timed(prompts(7)).tokens == 12


def test_a_prompt_that_one_contender_answers_with_a_loop_is_dropped_from_all():
    def answers(looping: int) -> Any:
        return lambda batch: [[7] * 4 if batch[0][0] == looping else [1, 2]]

    field = [
        scripted("plain", answers(2), is_baseline=True, also=("exact",)),
        scripted("loose", answers(0)),
    ]
    kinds = by_kind(field, times_of(field, race(field, [[[1]], [[2]], [[3]]], repeats=2)))
    assert set(kinds["baselines"]) == {"plain"} and set(kinds["methods"]) == {"exact", "loose"}
    for times in (kinds["baselines"]["plain"], kinds["methods"]["loose"]):
        assert (times["tokens"], times["target_forwards"], times["loops"]) == ([2, 2], [1, 1], 1)
        assert [len(repeats) for repeats in times["seconds"]] == [2, 2]


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
    looped = [greedy("llama", tuple(BATCH[place]), NUM) for place in looping]
    monkeypatch.setattr(LoopGuard, "is_loop", lambda self, ids: ids in looped)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("prob", r=1e-9), 4)
    # The others loop on the second prompt, it does not.
    assert decoder.generate(BATCH[1:2], max_new_tokens=NUM)[0].ids not in looped
    clocks, loops = side_by_side(decoder, BATCH, max_new_tokens=NUM)
    assert list(clocks) == ["plain", "strict", "prob"] and loops == len(looping)
    assert all(seconds > 0 and done.tokens == NUM * counted for seconds, done in clocks.values())
    console = Console(width=100)
    with console.capture() as shown:
        console.print(timed(clocks, loops))
    assert ("1 prompts were answered with a loop" in shown.get()) == (len(looping) == 1)


def test_a_race_goes_on_behind_its_finished_laps(tmp_path):
    asked: list[Any] = []
    field = [scripted("plain", lambda batch: asked.append(batch) or [[1, 2]])]
    batches = [[[1]], [[2]]]
    laps = race(field, batches, folder=tmp_path)
    (tmp_path / "lap-00001.json").unlink()
    asked.clear()
    again = race(field, batches, folder=tmp_path)
    assert asked == [[[1]], [[2]]]  # the first only warms up
    assert again[0] == laps[0] and times_of(field, again)["plain"]["tokens"] == [2, 2]
