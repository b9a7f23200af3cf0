"""A prompt on which any way of decoding loops is dropped for all of them."""

from __future__ import annotations

import pytest
from rich.console import Console

from gistgate.cli.show import timed
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.observing import race as timing
from gistgate.optional.guards import LoopGuard
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
