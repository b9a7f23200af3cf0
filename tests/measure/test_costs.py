"""Costs of draft steps and verification come from a few answers, and settle with the clock."""

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Statistics
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.costs import MAX_TURNS, TIMED, TURNS, measure
from tests.tiny import tiny_pair

TARGET, DRAFT = tiny_pair()
STRICT = Decoder(TARGET, ModelDrafter(DRAFT), Exact(), 4)


def test_costs_of_a_real_pair_are_measured_on_few_prompts_without_reading_them():
    unreadable = [10**9]
    for costs in measure(STRICT, [[1, 2, 3], [4, 5]], (2, 4), max_new_tokens=24):
        assert costs.step > 0 and costs.draft > 0 and 0 < costs.verify[2] <= costs.verify[4]
    with pytest.raises(UserError, match="first round"):
        measure(STRICT, [[1, 2, 3]], (2,), max_new_tokens=1)
    measure(STRICT, [[1, 2, 3]] * TIMED + [unreadable], (2,), max_new_tokens=8)
    with pytest.raises(UserError, match="token id 1000000000"):
        measure(STRICT, [[1, 2, 3]] * (TIMED - 1) + [unreadable], (2,), max_new_tokens=8)


@pytest.mark.parametrize(("noise", "turns"), [((1.0, 1.0), TURNS), ((1.0, 1.3), MAX_TURNS)])
def test_costs_are_measured_until_both_halves_of_the_turns_agree(monkeypatch, noise, turns):
    """The least time counts, and shorter drafts never cost more than longer ones."""
    limits = []

    def generate(decoder, prompts, max_new_tokens, **_):
        turn = len(limits) // 6  # plainly and with two K, whole and begun
        limits.append(max_new_tokens)
        scale = noise[turn % 2]
        block = decoder.block
        rounds = -(-max_new_tokens // (block + 1))
        verify = 1.5 if block == 2 else 1.2
        seconds = {
            "draft": 0.2 * block * rounds * scale,
            "verify": verify * rounds * scale,
            "total": float(rounds),
        }
        counted = Statistics(rounds, block * rounds, seconds=seconds)
        return [Generation([7] * max_new_tokens, [], "length", counted)]

    monkeypatch.setattr(Decoder, "generate", generate)
    costs = measure(STRICT, [[1, 2, 3]], (2, 4), max_new_tokens=45)
    assert len(limits) == 6 * turns
    assert costs[0].draft == pytest.approx(0.2)
    assert costs[0].verify == pytest.approx({2: 1.2, 4: 1.2})
    assert max(one.verify[4] for one in costs) == pytest.approx(1.2 * max(noise))
