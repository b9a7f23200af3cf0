"""What a pair can gain, from its costs and the accepted lengths of a strict run."""

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Statistics, total
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.measure import outlook as measured
from gistgate.measure.outlook import TIMED, Lengths, Mismatches, advice, limit_advice, measure, outlook
from tests.tiny import tiny_pair

HISTOGRAM = {0: 2, 4: 6, 8: 2}  # ten rounds at K = 8
TARGET, DRAFT = tiny_pair()


def test_a_shorter_block_cuts_the_accepted_lengths():
    costs = Costs(0.1, 0.25, {4: 1.0, 8: 1.5})
    assert outlook(costs, HISTOGRAM, 8).tau == pytest.approx((2 * 1 + 6 * 5 + 2 * 9) / 10)
    assert outlook(costs, HISTOGRAM, 4).tau == pytest.approx((2 * 1 + 8 * 5) / 10)


def test_the_speed_is_tau_over_the_price_of_a_round_which_is_linear_between_measured_blocks():
    one = outlook(Costs(0.1, 0.25, {4: 1.0, 8: 1.5}), HISTOGRAM, 8)
    assert one.strict == pytest.approx(5.0 / (1.5 + 8 * 0.25)) and one.ceiling == pytest.approx(9 / 3.5)
    costs = Costs(0.1, 0.1, {4: 1.0, 8: 1.4})
    assert [costs.verification(k) for k in (2, 4, 5, 8, 16)] == pytest.approx([1.0, 1.0, 1.1, 1.4, 1.4])


@pytest.mark.parametrize("draft, histogram, said", [
    (1.2, HISTOGRAM, "Speculation cannot pay"),
    (0.1, {8: 10}, "A gate is not worth its labels"),
    (0.1, HISTOGRAM, "A gate can pay"),
    (0.6, {0: 9, 8: 1}, "does not pay"),
])  # fmt: skip
def test_there_is_one_recommendation(draft: float, histogram: dict[int, int], said: str):
    costs = Costs(0.1, draft, {4: 1.0, 8: 1.0})
    assert said in advice([outlook(costs, histogram, block) for block in (2, 4, 8)])


def test_costs_of_a_real_pair_are_measured_on_few_prompts_without_reading_them():
    decoder, unreadable = Decoder(TARGET, ModelDrafter(DRAFT), Exact(), 4), [10**9]
    costs = measure(decoder, [[1, 2, 3], [4, 5]], (2, 4), max_new_tokens=24)
    assert costs.step > 0 and costs.draft > 0 and set(costs.verify) == {2, 4} and min(costs.verify.values()) > 0
    with pytest.raises(UserError, match="first round"):
        measure(decoder, [[1, 2, 3]], (2,), max_new_tokens=1)
    assert measure(decoder, [[1, 2, 3]] * TIMED + [unreadable], (2,), max_new_tokens=8).step > 0
    with pytest.raises(UserError, match="token id 1000000000"):
        measure(decoder, [[1, 2, 3]] * (TIMED - 1) + [unreadable], (2,), max_new_tokens=8)


def test_a_mismatch_is_a_draft_token_that_was_refused():
    """Not a round in which less than K tokens, or none, were found to draft."""
    counted = []
    for drafter in (PromptLookup(), ModelDrafter(DRAFT)):
        seen = Mismatches()
        decoder = Decoder(TARGET, drafter, Exact(), 8, observer=seen)
        answers = [decoder.generate([ids], max_new_tokens=24)[0] for ids in ([1, 2, 3], [4, 5])]
        found = total([answer.statistics for answer in answers])
        counted.append((seen.number, sum(n for length, n in found.histogram.items() if length < 8)))
    (by_lookup, short), _ = counted
    assert by_lookup < short and counted[1][0] > 0


def test_cut_answers_are_counted_apart_from_those_that_end_at_the_limit():
    ends = ((30, "eos"), (64, "length"), (64, "eos"), (50, "stop"))
    answers = [Generation([7] * tokens, [], finish, Statistics()) for tokens, finish in ends]
    assert measured.lengths_of(answers, 64) == Lengths(answers=4, cut=1, longest=64, limit=64)


@pytest.mark.parametrize(("found", "said"), [
    (Lengths(20, 0, 51, 64), "A limit of 80 tokens"),  # half as long again as the longest
    (Lengths(20, 2, 213, 400), "A limit of 320 tokens"),  # two never end
    (Lengths(20, 5, 158, 160), "--max-new-tokens 640"),  # the others end right below the limit
    (Lengths(20, 15, 20, 64), "--max-new-tokens 256"),  # a base model that goes on behind its answer
])  # fmt: skip
def test_answers_that_end_propose_a_limit_and_one_that_cuts_whole_answers_has_to_be_raised(found: Lengths, said: str):
    assert said in limit_advice(found)
