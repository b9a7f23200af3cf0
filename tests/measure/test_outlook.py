"""What a pair can gain, from its costs and the accepted lengths of a strict run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.request import Statistics
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.measure.outlook import TIMED, Mismatches, advice, fastest, labelling, measure, outlook, strict_run, tau_at
from gistgate.measure.speed import Clock
from tests.tiny import tiny_pair

HISTOGRAM = {0: 2, 4: 6, 8: 2}
"""Ten rounds at K = 8."""


def test_a_shorter_block_cuts_the_accepted_lengths():
    assert tau_at(HISTOGRAM, 8) == pytest.approx((2 * 1 + 6 * 5 + 2 * 9) / 10)
    assert tau_at(HISTOGRAM, 4) == pytest.approx((2 * 1 + 8 * 5) / 10)
    with pytest.raises(UserError, match="Nothing was decoded"):
        tau_at({}, 4)


def test_the_speed_is_tau_over_the_price_of_a_round():
    one = outlook(Costs(0.1, 0.25, {4: 1.0, 8: 1.5}), HISTOGRAM, 8)
    assert one.strict == pytest.approx(5.0 / (1.5 + 8 * 0.25)) and one.ceiling == pytest.approx(9 / 3.5)


def test_verification_is_linear_between_measured_blocks_and_constant_outside():
    costs = Costs(0.1, 0.1, {4: 1.0, 8: 1.4})
    assert [costs.verification(k) for k in (2, 4, 5, 8, 16)] == pytest.approx([1.0, 1.0, 1.1, 1.4, 1.4])


@pytest.mark.parametrize(
    "draft, histogram, said",
    [
        (1.2, HISTOGRAM, "Speculation cannot pay"),
        (0.1, {8: 10}, "A gate is not worth its labels"),
        (0.1, HISTOGRAM, "A gate can pay"),
        (0.6, {0: 9, 8: 1}, "does not pay"),
    ],
)
def test_there_is_one_recommendation(draft: float, histogram: dict[int, int], said: str):
    costs = Costs(0.1, draft, {4: 1.0, 8: 1.0})
    assert said in advice([outlook(costs, histogram, block) for block in (2, 4, 8)])


def test_costs_of_a_real_pair_are_measured_without_reading_the_prompt():
    target, draft = tiny_pair()
    decoder = Decoder(target, ModelDrafter(draft), Exact(), 4)
    costs = measure(decoder, [[1, 2, 3], [4, 5]], (2, 4), max_new_tokens=24)
    assert costs.step > 0 and costs.draft > 0 and set(costs.verify) == {2, 4} and min(costs.verify.values()) > 0
    with pytest.raises(UserError, match="first round"):
        measure(decoder, [[1, 2, 3]], (2,), max_new_tokens=1)


def test_a_mismatch_is_a_draft_token_that_was_refused():
    """Not a round in which less than K tokens, or none, were found to draft."""
    target, draft = tiny_pair()
    counted = []
    for drafter in (PromptLookup(), ModelDrafter(draft)):
        seen = Mismatches()
        decoder = Decoder(target, drafter, Exact(), 8)
        found = strict_run(decoder, [[1, 2, 3], [4, 5]], 8, seen, max_new_tokens=24)
        counted.append((seen.number, sum(n for length, n in found.histogram.items() if length < 8)))
        assert labelling(found, seen.number, 2).per_prompt == seen.number / 2
    (by_lookup, short), _ = counted
    assert by_lookup < short and counted[1][0] > 0


def test_costs_need_few_prompts():
    target, draft = tiny_pair()
    decoder, unreadable = Decoder(target, ModelDrafter(draft), Exact(), 4), [10**9]
    assert measure(decoder, [[1, 2, 3]] * TIMED + [unreadable], (2,), max_new_tokens=8).step > 0
    with pytest.raises(UserError, match="token id 1000000000"):
        measure(decoder, [[1, 2, 3]] * (TIMED - 1) + [unreadable], (2,), max_new_tokens=8)


def test_a_slow_reading_of_the_prompt_does_not_change_the_costs(monkeypatch: pytest.MonkeyPatch):
    target, _ = tiny_pair()
    clock, spent = Clock("measured", Decoder(target, None, Exact(), 0)), iter([(9.0, 0.5), (1.0, 0.9), (1.2, 0.7)])

    def run(_ids: list[int]) -> tuple[float, Any]:
        whole, drafting = next(spent)
        return whole, SimpleNamespace(statistics=Statistics(forwards=3, seconds={"total": whole, "draft": drafting}))

    monkeypatch.setattr(clock, "run", run)
    assert fastest(clock, [1], {}) == Statistics(forwards=3, seconds={"total": 1.0, "draft": 0.5})
    assert next(spent, None) is None
