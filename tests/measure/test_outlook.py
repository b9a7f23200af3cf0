"""What a pair can gain, from its costs and the accepted lengths of a strict run."""

from itertools import chain

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Statistics, total
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.measure.outlook import (
    Change,
    Findings,
    Mismatches,
    change,
    examine,
    lengths_of,
    limit_advice,
    mean_length,
    outlook,
    plan,
    verdict,
)
from tests.tiny import tiny_pair

HISTOGRAM = {0: 2, 4: 6, 8: 2}  # ten rounds at K = 8
TARGET, DRAFT = tiny_pair()
STRICT = Decoder(TARGET, ModelDrafter(DRAFT), Exact(), 4)


def test_a_shorter_block_cuts_the_accepted_lengths():
    assert mean_length(HISTOGRAM, 8) == pytest.approx((2 * 1 + 6 * 5 + 2 * 9) / 10)
    assert mean_length(HISTOGRAM, 4) == pytest.approx((2 * 1 + 8 * 5) / 10)


def test_the_speed_is_tau_over_the_price_of_a_round_which_is_linear_between_measured_blocks():
    seen = outlook(Costs(0.1, 0.25, {4: 1.0, 8: 1.5}), 8, 5.0, 7.0)
    assert (seen.strict, seen.half, seen.ceiling) == pytest.approx((5 / 3.5, 7 / 3.5, 9 / 3.5))
    costs = Costs(0.1, 0.1, {4: 1.0, 8: 1.4})
    assert [costs.verification(k) for k in (2, 4, 5, 8, 16)] == pytest.approx(
        [1.0, 1.0, 1.1, 1.4, 1.4]
    )


def findings(
    costs=((0.14, 1.2),) * 3,
    taus=(3.7, 5.6),
    forwards=(37, 24),
    tokens=137.0,
    score=0.92,
    square=0.02,
    lost=0.05,
):
    """Findings with these costs (c and v) of all turns and of their halves, by default those of
    letters.
    """
    priced = [Costs(0.1, c, {8: v}) for c, v in costs]
    outlooks = [[outlook(each, 8, *taus)] for each in priced]
    strict = Change(1, taus[0], tokens, forwards[0], 0.0, score, 0, 0, 0.0)
    loose_score = None if score is None else score - lost
    loose = Change(0.5, 0.0, tokens, forwards[1], 0.0, loose_score, 3, 2, square)
    lengths = {"answers": 12, "cut": 0, "longest": 180, "limit": 220}
    return Findings("this processor", priced, outlooks, [strict, loose], 0.75, 10.0, lengths)


DEAR = ((1.2, 1.2),) * 3
NOISY = ((0.4, 1.2), (0.1, 1.2), (0.45, 1.2))
NOISIER = ((0.9, 1.2), (0.1, 1.2), (1.2, 1.2))


@pytest.mark.parametrize(
    ("pays", "reason", "seen"),
    [
        (True, "keeps 3.7 of 9 tokens", findings()),
        (True, "loose answers need at best 1.54 times", findings(score=None, square=None)),
        (False, "gained: strict decoding keeps 5.8 of 9", findings(taus=(5.8, 7.2))),
        (False, "the target scores 0.46 only", findings(score=0.46)),
        (False, "at r = 0.5 3 answers score less and 2 more", findings(square=0.3)),
        (False, "as they grow or keep little more", findings(forwards=(37, 36))),
        (False, "No: answers are too short to draft, 3.0 tokens", findings(tokens=3.0)),
        (False, "little can be gained", findings(costs=DEAR)),
        (None, "would be 0.67 [0.52, 1.51] times as fast", findings(costs=NOISIER)),
        (None, "while the machine is idle", findings(costs=NOISY)),
        (False, "the target scores 0.10 only", findings(score=0.1, costs=NOISY)),
    ],
)
def test_there_is_one_answer_with_its_reasons_and_none_where_costs_are_not_known(
    pays, reason, seen
):
    answer, sentence = verdict(seen)
    last = sentence.splitlines()[-1]
    assert answer is pays and reason in last
    assert last.startswith({True: "Yes", False: "No", None: "Too noisy to say"}[pays])


@pytest.mark.parametrize(
    ("seen", "begins"),
    [
        (
            findings(costs=((0.1, 4.123),) * 3, taus=(2.0, 3.0)),
            ": speculation does not pay, so decode plainly.",
        ),
        (findings(costs=((0.1, 2.5),) * 3), ", which a draft has to save first."),
        (findings(), None),
    ],
)
def test_reads_of_several_rows_that_cost_many_times_one_are_named_with_the_processor(seen, begins):
    sentence = verdict(seen)[1]
    price = f"{seen.costs[0].verification(8):.2f}"
    line = f"On this processor reading 9 rows costs {price} [{price}, {price}] times 1 row"
    assert (f"{line} of this target{begins}" in sentence) == (begins is not None)
    assert (line in sentence) == (begins is not None)


def test_a_rule_without_training_is_named_where_it_gains_and_loses_no_more_than_by_chance():
    """A round costs 1.2 + 8 x 0.14 target steps."""
    speed = 137 / (3.7 / 2.32) / (24 * 2.32)
    told = f"would be {speed:.2f} [{speed:.2f}, {speed:.2f}] times as fast"
    few_lost = findings(lost=0.04)  # standard error 0.041
    assert told in verdict(few_lost)[1] and "at r = 0.5, where 3 answers" in verdict(few_lost)[1]
    for seen in (findings(lost=0.05), findings(lost=0.04, forwards=(37, 36))):
        assert "prob-ratio" not in verdict(seen)[1]


def test_a_speed_just_below_the_limit_does_not_read_as_the_limit():
    gain = 1.3496
    seen = findings(taus=(4.0, 4.0 * gain))
    assert "would be 1.3496 [1.3496, 1.3496] times" in verdict(seen)[1]


def test_a_change_counts_growth_other_answers_and_scores():
    strict = [[1, 2, 3], [4, 5], [6]]
    loose = [[1, 2, 3], [4, 9, 9, 9], [7]]

    def scores(place, answer):
        return 1.0 if answer[-1] == 9 else 0.5 * place

    made = change(0.5, 2.0, strict, loose, scores)
    assert (made.tokens, made.forwards, made.changed) == pytest.approx((8 / 3, 4 / 3, 2 / 3))
    assert (made.score, made.lost, made.gained) == pytest.approx((2 / 3, 0, 1))
    assert made.square == pytest.approx(0.25 / 3)
    assert change(0.5, 2.0, strict, loose, None).score is None


def test_a_budget_needs_more_prompts_where_more_scores_change():
    shaky, steady = (
        int(plan(findings(square=square), 0.02, 0.95).split()[9]) for square in (5 / 12, 0.01)
    )
    assert shaky > 1500 > steady > 100


def test_near_ties_and_half_of_the_mismatches_lie_between_strict_decoding_and_all_drafts():
    seen = examine(STRICT, [[1, 2, 3], [4, 5]], lambda place, ids: 1.0, max_new_tokens=20)
    assert [change.r for change in seen.changes] == [1, 0.9, 0.5, 0.2] and 0 < seen.agreement < 1
    assert seen.changes[0].tau <= seen.changes[-1].tau and seen.changes[0].changed == 0
    for promise in chain.from_iterable(seen.outlooks):
        assert 0 < promise.strict <= promise.half <= promise.ceiling
    with pytest.raises(UserError, match="at least one prompt"):
        examine(STRICT, [], None, max_new_tokens=4)


def test_a_mismatch_is_a_draft_token_that_was_refused():
    """Not a round in which less than K tokens, or none, were found to draft."""

    def counted(drafter):
        counter = Mismatches(8)
        decoder = Decoder(TARGET, drafter, Exact(), 8, observer=counter)
        answers = [decoder.generate([ids], max_new_tokens=24)[0] for ids in ([1, 2, 3], [4, 5])]
        histogram = total([answer.statistics for answer in answers]).histogram
        return counter.number, sum(num for length, num in histogram.items() if length < 8)

    mismatches, short = counted(PromptLookup())
    assert mismatches < short
    assert counted(ModelDrafter(DRAFT))[0] > 0


def test_cut_answers_are_counted_apart_from_those_that_end_at_the_limit():
    ends = ((30, "eos"), (64, "length"), (64, "eos"), (50, "stop"))
    answers = [Generation([7] * tokens, [], finish, Statistics()) for tokens, finish in ends]
    assert lengths_of(answers, 64) == {"answers": 4, "cut": 1, "longest": 64, "limit": 64}


@pytest.mark.parametrize(
    ("lengths", "advice"),
    [
        ((20, 0, 51, 64), "A limit of 80 tokens"),  # half as long again as the longest
        ((20, 2, 213, 400), "A limit of 320 tokens"),  # two never end
        ((20, 5, 158, 160), "--max-new-tokens 640"),  # the others end right below the limit
        ((20, 15, 20, 64), "--max-new-tokens 256"),  # a base model that goes on behind its answer
    ],
)
def test_answers_that_end_propose_a_limit_and_one_that_cuts_whole_answers_has_to_be_raised(
    lengths, advice
):
    assert advice in limit_advice(*lengths)
