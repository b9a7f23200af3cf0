"""What looks at every block, and what continues a text, runs on the eager engine although programs were asked for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gistgate.compiled import session as compiled
from gistgate.core.decoder import Decoder
from gistgate.core.guards import DomainGuard, LoopGuard, fit
from gistgate.core.request import Generation
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import pair, prompts
from tests.core.watching import Watch, continued

BATCH = prompts(5, 17, 2, 10)
NUM = 20


def decoder_of(engine: str, **parts: Any) -> Decoder:
    target, draft = pair("llama", noise=0.1)
    return Decoder(target, ModelDrafter(draft), make_rule("prob", r=1e-3), 4, engine=engine, **parts)


def seen(answers: list[Generation]) -> list[tuple[Any, ...]]:
    return [(one.ids, one.reasons, one.finish, one.statistics.extra) for one in answers]


def strange() -> DomainGuard:
    """A guard that finds every text strange."""
    states = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
    return DomainGuard(*fit(states, 8), far=0.0)


class Weary(LoopGuard):
    """Finds that every text loops from its fourth token on."""

    def is_loop(self, ids: Sequence[int]) -> bool:
        return len(ids) > 3


@pytest.mark.parametrize("guard", [strange(), Weary()], ids=["domain", "loop"])
def test_guards_are_asked_by_the_eager_engine(traced: None, guard: Any):
    """Two requests and one warning; without it the programs would write what nobody guarded."""
    programs, eager = decoder_of("compiled", guards=[guard]), decoder_of("eager", guards=[guard])
    with pytest.warns(UserWarning, match="eager engine instead .* guards look at every block") as said:
        answers = [programs.generate(BATCH, max_new_tokens=NUM) for _ in range(2)]
    guarded, free = (one.generate(BATCH, max_new_tokens=NUM) for one in (eager, decoder_of("compiled")))
    assert len(said) == 1 and [seen(answer) for answer in answers] == [seen(guarded)] * 2
    assert [row.ids for row in free] != [row.ids for row in guarded]


def test_an_observer_is_told_by_the_eager_engine(traced: None):
    """It sees the same blocks, and without it the same decoder runs its programs."""
    watches = Watch(wants_q=True), Watch(wants_q=True)
    eager, programs = (decoder_of(engine) for engine in ("eager", "compiled"))
    with pytest.warns(UserWarning, match="eager engine instead .* an observer looks at every block") as said:
        found = programs.having(observer=watches[1]).generate(BATCH, max_new_tokens=NUM)
    wanted = eager.having(observer=watches[0]).generate(BATCH, max_new_tokens=NUM)
    assert len(said) == 1 and seen(found) == seen(wanted)
    blocks = [[(one.draft_ids.tolist(), kept.length.tolist(), texts) for one, kept, texts in w.seen] for w in watches]
    assert blocks[1] == blocks[0] and len(blocks[0]) == max(one.statistics.forwards for one in wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert seen(programs.generate(BATCH, max_new_tokens=NUM)) == seen(wanted)


def test_texts_are_continued_by_the_eager_engine_without_a_word(traced: None, monkeypatch: pytest.MonkeyPatch):
    """Programs begin with a prompt: `resume` never builds any, and never counts as a fall-back."""
    eager, programs = (decoder_of(engine) for engine in ("eager", "compiled"))
    wanted = continued(eager, BATCH, NUM)
    monkeypatch.setattr(compiled, "CompiledSession", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = continued(programs, BATCH, NUM)
    assert seen(found) == seen(wanted) and any(one.statistics.loose for one in wanted)
    assert not programs.engine.fell_back
