"""What a compiled session counts, and what it leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from gistgate.compiled.rounds import PromptReader
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import pair, prompts


def test_reading_a_prompt_belongs_to_the_time_of_its_answer(traced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No round reads it, so that nothing else would count it."""
    read = PromptReader.read

    now = [0.0]

    def slowly(self: PromptReader, *arguments: Any) -> Any:
        now[0] += 300
        return read(self, *arguments)

    monkeypatch.setattr("gistgate.compiled.session.perf_counter", lambda: now[0])

    monkeypatch.setattr(PromptReader, "read", slowly)
    target, draft = pair("llama")
    [answer] = Decoder(target, ModelDrafter(draft), make_rule("exact"), 3, engine="compiled").generate(
        prompts(9), max_new_tokens=4
    )
    seconds = answer.statistics.seconds
    assert (seconds["draft"], seconds["verify"], seconds["total"]) == (300, 300, 600)


@pytest.mark.parametrize("fails", [False, True])
def test_a_drafter_keeps_nothing_of_a_batch_that_is_over(traced: None, fails: bool) -> None:
    sizes: list[int] = []

    class Watched(PromptLookup):
        def start(self, batch: int) -> None:
            sizes.append(batch)
            super().start(batch)

        def keep(self, kept: Any, *more: Any) -> None:
            if fails:
                raise RuntimeError("stopped")
            super().keep(kept, *more)

    decoder = Decoder(pair("llama")[0], Watched(), make_rule("exact"), 3, engine="compiled")
    if fails:
        with pytest.raises(RuntimeError, match="stopped"):
            decoder.generate(prompts(9, 4), max_new_tokens=4)
    else:
        decoder.generate(prompts(9, 4), max_new_tokens=4)
    assert sizes == [2, 0]
