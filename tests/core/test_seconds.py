"""Whose seconds are whose: the prompt of a row that joins a running batch is read in that row's own time."""

from __future__ import annotations

from typing import Any

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.reader import Reader
from gistgate.core.request import Slots
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

NUM = 20
READING = 300.0
"""Seconds that reading prompts beside a running batch takes on the clock of these tests; any other read takes one."""


@pytest.mark.parametrize("joining", [1, 2])
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_reading_a_prompt_beside_a_running_batch_is_the_time_of_its_row(
    monkeypatch: pytest.MonkeyPatch, drafter: str, joining: int
):
    """Rows that end together leave their slots to as many others, which are read at once beside one that goes on."""
    now, running = [0.0], []
    read, admit = Reader.read, Reader.admit

    def ticking(self: Reader, *given: Any, **named: Any) -> Any:
        now[0] += 1
        return read(self, *given, **named)

    def slowly(self: Reader, *given: Any) -> None:
        now[0] += READING
        running.append(self.slots)
        admit(self, *given)

    monkeypatch.setattr("gistgate.core.session.perf_counter", lambda: now[0])
    monkeypatch.setattr(Reader, "read", ticking)
    monkeypatch.setattr(Reader, "admit", slowly)

    short, long, *late = prompts(5, 17, 9, 6)
    ends = greedy("llama", tuple(short), NUM)[0]
    assert ends not in greedy("llama", tuple(long), NUM)
    made: Any = ModelDrafter(pair("llama")[1]) if drafter == "model" else PromptLookup()
    decoder = Decoder(pair("llama")[0], made, make_rule("exact"), 4)
    batch = [*[short] * joining, long, *late[:joining]]
    answers = decoder.generate(batch, max_new_tokens=NUM, eos_ids={ends}, slots=Slots(joining + 1))

    models = 2 if drafter == "model" else 1
    assert len(running) == models and all(running), "the late rows come in once, beside what both models have read"
    seconds = [answer.statistics.seconds for answer in answers]
    assert sum(one["total"] for one in seconds) == pytest.approx(now[0])
    for one in seconds[: joining + 1]:
        assert 0 < one["total"] < READING / 2
    own = READING / joining
    for one in seconds[joining + 1 :]:
        assert own < one["verify"] < own + NUM and own * models < one["total"] < own * models + 6 * NUM
        assert own * (models - 1) <= one["draft"] < own * (models - 1) + 5 * NUM
