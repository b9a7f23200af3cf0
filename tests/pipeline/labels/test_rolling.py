"""Rollouts that are asked for while others are made."""

import pytest

from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels.rollouts import Cost, PrefixCache, Rollout, RolloutRunner
from tests.pipeline.labels.ends import ends
from tests.pipeline.labels.test_mining import PROMPTS, REQUEST, pair  # noqa: F401

ANSWER = list(range(100, 116))


def rollouts(*positions: int) -> list[Rollout]:
    return [Rollout(0, PROMPTS[0], ANSWER, position, 40 + position, ANSWER) for position in positions]


class OneAfterTheOther:
    """Asks for the next rollout when the one before has ended, and decodes something itself in between."""

    def __init__(self, rollouts, decoder):
        self.waiting, self.decoder, self.ended, self.under_way = list(rollouts), decoder, {}, False

    def take(self, num):
        self.decoder.generate(PROMPTS, **REQUEST)
        if self.under_way or not self.waiting:
            return []
        self.under_way = True
        return [self.waiting.pop(0)]

    def decided(self, rollout, answer):
        return "enough" if rollout.position == 9 and len(answer) > 12 else None

    def end(self, rollout, ended):
        self.ended[rollout], self.under_way = ended, False


@pytest.mark.parametrize("kind", ["plain", "speculative"])
def test_a_source_may_wait_for_an_end_and_decode_meanwhile(pair, kind):  # noqa: F811
    """What is decided beforehand costs no forward."""
    decoder, cost = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4), Cost()
    one = decoder.plain() if kind == "plain" else decoder
    runner = RolloutRunner(one, PrefixCache(decoder, 8), 8, cost, **REQUEST)
    found = ends(runner, rollouts(5, 2), answered=lambda _rollout, _answer: True)
    assert [one.ids for one in found] == [[*ANSWER[:5], 45], [*ANSWER[:2], 42]]
    assert (cost.rollouts, cost.slots) == (0, 0)
    source = OneAfterTheOther(asked := rollouts(9, 3, 0, 12), decoder)
    runner.serve(source)
    alone, ended = ends(runner, asked), list(source.ended.values())
    assert list(source.ended) == asked and ended[1:] == alone[1:]
    assert ended[0].finish == "enough" and alone[0].ids[: len(ended[0].ids)] == ended[0].ids
