"""Above a number of rows a batch is decoded plainly: the target's own ids, and counted."""

from __future__ import annotations

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure import speed as timing
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts

BATCH = prompts(5, 9, 7)
NUM = 10


def decoder(rule: str = "exact", most: int | None = None, **settings: float) -> Decoder:
    target, draft = pair("llama")
    return Decoder(target, ModelDrafter(draft), make_rule(rule, **settings), 4, speculate_up_to=most)


def test_a_larger_batch_is_plain_and_says_so():
    answers = decoder(most=2).generate(BATCH, max_new_tokens=NUM)
    assert [answer.statistics.extra["plain_forwards"] for answer in answers] == [NUM] * 3
    assert sum(answer.statistics.draft_forwards for answer in answers) == 0
    assert [answer.ids for answer in answers] == [greedy("llama", tuple(ids), NUM) for ids in BATCH]


def test_up_to_that_number_it_speculates():
    answers = decoder(most=3).generate(BATCH, max_new_tokens=NUM)
    assert all(answer.statistics.draft_forwards > 0 for answer in answers)
    assert all("plain_forwards" not in answer.statistics.extra for answer in answers)


def test_a_loose_rule_is_strict_in_a_plain_batch():
    loose = decoder("prob", most=0, r=1e-9).generate(BATCH, max_new_tokens=NUM)
    assert [answer.ids for answer in loose] == [greedy("llama", tuple(ids), NUM) for ids in BATCH]
    assert all(answer.statistics.loose == 0 for answer in loose)


def test_it_holds_for_continued_texts_as_well():
    loose = decoder("prob", most=2, r=1e-9)
    memories = loose.remember(BATCH)
    found = loose.resume(memories, [(len(ids) - 1, ids[-1:]) for ids in BATCH], [*map(len, BATCH)], max_new_tokens=NUM)
    assert [answer.ids for answer, _ in found] == [greedy("llama", tuple(ids), NUM) for ids in BATCH]
    assert all(answer.statistics.extra["plain_forwards"] == NUM for answer, _ in found)
    again = [memory for _, memory in found][:2]  # they know nothing of the draft model, which reads the texts again
    going = loose.resume(
        again, [(len(memory.text) - 1, memory.text[-1:]) for memory in again], [5, 9], max_new_tokens=2 * NUM
    )
    assert all(answer.statistics.draft_forwards > 0 for answer, _ in going)


@pytest.mark.parametrize(("speculative", "most"), [((9, 9, 9), 4), ((9, 3, 9), 1), ((3, 9, 9), 0)])
def test_the_number_is_the_last_batch_before_it_stops_paying(monkeypatch: pytest.MonkeyPatch, speculative, most):
    rates = {1: speculative[0], 2: speculative[1], 4: speculative[2]}
    monkeypatch.setattr(timing, "rate", lambda one, batch, request: 5.0 if one.drafter is None else rates[len(batch)])
    assert timing.pays_up_to(decoder(), BATCH, (1, 2, 4), max_new_tokens=NUM) == most


def test_it_wants_a_prompt():
    with pytest.raises(UserError, match="no prompt"):
        timing.pays_up_to(decoder(), [], max_new_tokens=NUM)
