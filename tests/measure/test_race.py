"""What a race counts: a prompt that is answered with a loop is dropped, and of two runs the better one is a rate."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from gistgate.cli.show import timed
from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard
from gistgate.drafters.model import ModelDrafter
from gistgate.measure import speed as timing
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

BATCH = prompts(5, 9, 7)
NUM = 10


@pytest.mark.parametrize("looping, counted", [((), 3), ((1,), 2), ((0, 1, 2), 3)])
def test_a_loop_of_one_is_dropped_from_all(monkeypatch: pytest.MonkeyPatch, looping: tuple[int, ...], counted: int):
    target, draft = pair("llama")
    loops = [greedy("llama", tuple(BATCH[place]), NUM) for place in looping]
    monkeypatch.setattr(LoopGuard, "is_loop", lambda self, ids: ids in loops)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("prob", r=1e-9), 4)
    assert decoder.generate(BATCH[1:2], max_new_tokens=NUM)[0].ids not in loops  # the others loop, it does not
    console = Console(width=100)
    clocks = timing.side_by_side(decoder, BATCH, max_new_tokens=NUM)
    assert [clock.statistics.tokens for clock in clocks] == [NUM * counted] * 3
    assert [clock.loops for clock in clocks] == [len(looping)] * 3 and all(clock.seconds > 0 for clock in clocks)
    with console.capture() as shown:
        console.print(timed(clocks))
    assert ("1 prompts were answered with a loop" in shown.get()) == (len(looping) == 1)


class Scripted:
    """A decoder whose runs take what is written down, whatever it is asked, and answer with 3, 4, 5 .. tokens."""

    target = SimpleNamespace(device=torch.device("cpu"))

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.now, self.asked = list(seconds), 100.0, list[Any]()

    def generate(self, batch: Sequence[Sequence[int]], **request: Any) -> list[Any]:
        self.now += self.seconds.pop(0)
        self.asked.append((batch, request))
        return [SimpleNamespace(ids=[7] * (3 + row)) for row in range(len(batch))]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((40.0, 2.0, 8.0), 6.0), ((40.0, 8.0, 2.0), 6.0), ((0.5, 8.0, 4.0), 3.0)],
    ids=["first", "second", "fast warm-up"],
)
def test_a_rate_is_tokens_per_second_of_the_better_of_two_runs_behind_a_warm_up(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], expected: float
):
    decoder = Scripted(*seconds)
    monkeypatch.setattr(timing, "perf_counter", lambda: decoder.now)
    found = timing.rate(decoder, BATCH, {"max_new_tokens": NUM})  # type: ignore[arg-type]
    assert found == pytest.approx(expected)
    assert decoder.asked == [(BATCH, {"max_new_tokens": NUM})] * 3


def test_a_device_has_finished_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch):
    """Answers that are still on their way when a run returns cost their time too."""
    decoder = Scripted(1.0, 1.0, 1.0)

    def wait(device: torch.device) -> None:
        assert device == decoder.target.device
        decoder.now += 2.0 * (len(decoder.asked) > 1)

    monkeypatch.setattr(timing, "perf_counter", lambda: decoder.now)
    monkeypatch.setattr(timing, "synchronise", wait)
    assert timing.rate(decoder, BATCH, {}) == pytest.approx(12 / 3)  # type: ignore[arg-type]
