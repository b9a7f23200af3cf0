"""Rollouts that are asked for while others are made."""

from __future__ import annotations

import pytest

from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels.rollouts import Cost, PrefixCache, Rollout, RolloutRunner
from tests.pipeline.labels.ends import ends
from tests.pipeline.labels.test_mining import PROMPTS, REQUEST, pair  # noqa: F401

ANSWER = list(range(100, 116))


def rollout(position: int) -> Rollout:
    return Rollout(0, PROMPTS[0], ANSWER, position, 40 + position, ANSWER)


class OneAfterTheOther:
    """Asks for the next rollout when the one before has ended, and decodes something itself in between."""

    def __init__(self, rollouts, decoder):
        self.rollouts, self.decoder, self.ended, self.asked = list(rollouts), decoder, {}, 0

    def take(self, num):
        self.decoder.generate(PROMPTS, **REQUEST)
        if self.asked > len(self.ended):
            return []
        self.asked += 1
        return self.rollouts[self.asked - 1 : self.asked]

    def decided(self, rollout, answer):
        return "enough" if rollout.position == 9 and len(answer) > 12 else None

    def end(self, rollout, ended):
        self.ended[rollout] = ended


@pytest.fixture(scope="module", params=["plain", "speculative"])
def parts(pair, request):  # noqa: F811
    target, draft = pair
    decoder, cost = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4), Cost()
    one = decoder.plain() if request.param == "plain" else decoder
    return RolloutRunner(one, PrefixCache(decoder, 8), 8, cost, **REQUEST), decoder, cost


def test_a_supply_may_wait_for_an_end_and_decode_meanwhile(parts):
    runner, decoder, _ = parts
    rollouts = [rollout(position) for position in (9, 3, 0, 12)]
    source = OneAfterTheOther(rollouts, decoder)
    runner.serve(source)
    assert [one.position for one in source.ended] == [9, 3, 0, 12]
    alone = ends(runner, rollouts)
    assert [source.ended[one] for one in rollouts[1:]] == alone[1:]
    decided = source.ended[rollouts[0]]
    assert decided.finish == "enough" and alone[0].ids[: len(decided.ids)] == decided.ids


def test_what_is_decided_beforehand_costs_no_forward(parts):
    runner, _, cost = parts
    before = cost.rollouts, cost.slots
    found = ends(runner, [rollout(5), rollout(2)], answered=lambda _rollout, _answer: True)
    assert [one.ids for one in found] == [[*ANSWER[:5], 45], [*ANSWER[:2], 42]]
    assert (cost.rollouts, cost.slots) == before
