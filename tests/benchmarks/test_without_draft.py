"""A pair without a draft model is refused with a sentence where one is needed, before anything is timed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import limit, memory, sampled
from gistgate.errors import UserError
from pipeline.pairs.pair import Pair
from tests.architectures import tiny_model

REFUSED = "drafts with 'suffix' and has no draft model, which this needs. Choose a pair with a draft model"


@pytest.fixture
def workload() -> Any:
    """A run whose pair copies from the text."""
    pair = Pair(tiny_model("llama"), None, None, "alone", drafter="suffix")  # type: ignore[arg-type]
    decoding = SimpleNamespace(strict_block=4, block=8, batch_size=2)
    about = {"params": SimpleNamespace(decoding=decoding), "prompts": [], "points": {}, "headline": []}
    return SimpleNamespace(pair=pair, ids=[[1, 2]], request={"max_new_tokens": 4, "eos_ids": []}, **about)


def test_the_limit_needs_draft_steps(workload: Any):
    decoder: Any = SimpleNamespace(block=4, engine=SimpleNamespace(name="eager"))
    with pytest.raises(UserError, match=REFUSED):
        limit.limit(workload, decoder, 1)


def test_memory_is_that_of_two_models(workload: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory.Workload, "load", lambda _num: workload)
    monkeypatch.setattr(memory, "beyond", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(UserError, match=REFUSED):
        memory.main()


def test_sampled_trees_are_of_a_draft_model(workload: Any):
    with pytest.raises(UserError, match=REFUSED):
        sampled.make_decoders(workload)
