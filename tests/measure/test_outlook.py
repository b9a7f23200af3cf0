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
from gistgate.measure.outlook import (
    Change,
    Findings,
    Mismatches,
    change,
    examine,
    limit_advice,
    measure,
    outlook,
)
from tests.tiny import tiny_pair

HISTOGRAM = {0: 2, 4: 6, 8: 2}  # ten rounds at K = 8
TARGET, DRAFT = tiny_pair()
STRICT = Decoder(TARGET, ModelDrafter(DRAFT), Exact(), 4)


def test_a_shorter_block_cuts_the_accepted_lengths():
    assert measured.mean_length(HISTOGRAM, 8) == pytest.approx((2 * 1 + 6 * 5 + 2 * 9) / 10)
    assert measured.mean_length(HISTOGRAM, 4) == pytest.approx((2 * 1 + 8 * 5) / 10)


def test_the_speed_is_tau_over_the_price_of_a_round_which_is_linear_between_measured_blocks():
    one = outlook(Costs(0.1, 0.25, {4: 1.0, 8: 1.5}), 8, 5.0, 7.0)
    assert (one.strict, one.half, one.ceiling) == pytest.approx((5 / 3.5, 7 / 3.5, 9 / 3.5))
    costs = Costs(0.1, 0.1, {4: 1.0, 8: 1.4})
    assert [costs.verification(k) for k in (2, 4, 5, 8, 16)] == pytest.approx(
        [1.0, 1.0, 1.1, 1.4, 1.4]
    )


def seen(
    costs=((0.14, 1.2),) * 3, taus=(3.7, 5.6), forwards=(37, 24), tokens=137.0, score=0.92, square=0.02, agreement=0.75
):  # fmt: skip
    """Findings with these costs (c and v) of all turns and of their halves, by default those of
    letters.
    """
    known = [Costs(0.1, c, {8: v}) for c, v in costs]
    changes = [
        Change(r, 0.0, tokens, n, 0.0, score, 3, 2, square)
        for r, n in ((1, forwards[0]), (0.5, forwards[1]))
    ]
    changes[0] = Change(1, taus[0], tokens, forwards[0], 0.0, score, 0, 0, 0.0)
    lengths = {"answers": 12, "cut": 0, "longest": 180, "limit": 220}
    return Findings(
        known, [[outlook(one, 8, *taus)] for one in known], changes, agreement, 10.0, lengths
    )


@pytest.mark.parametrize(("pays", "said", "found"), [
    (True, "keeps 3.7 of 9 tokens", seen()),
    (True, "loose answers need at best 1.54 times fewer", seen(score=None, square=None)),
    (False, "little can be gained: strict decoding keeps 5.8 of 9 tokens", seen(taus=(5.8, 7.2))),
    (False, "the target scores 0.46 only", seen(score=0.46)),
    (False, "at r = 0.5 3 answers score less and 2 more", seen(square=0.3)),
    (False, "as they grow or keep little more", seen(forwards=(37, 36))),
    (False, "No: answers are too short to draft, 3.0 tokens", seen(tokens=3.0)),
    (False, "with every draft token accepted, speculation would be 0.8", seen(costs=((1.2, 1.2),) * 3)),
    (None, "would be 0.67 [0.52, 1.51] times as fast as decoding", seen(costs=((0.9, 1.2), (0.1, 1.2), (1.2, 1.2)))),
    (None, "while the machine is idle", seen(costs=((0.4, 1.2), (0.1, 1.2), (0.45, 1.2)))),
    (False, "the target scores 0.10 only", seen(score=0.1, costs=((0.9, 1.2), (0.5, 1.2), (1.2, 1.2)))),
])  # fmt: skip
def test_there_is_one_answer_with_its_reasons_and_none_where_costs_are_not_known(pays, said, found):
    answer, sentence = measured.verdict(found)
    last = sentence.splitlines()[-1]
    assert answer is pays and said in last
    assert last.startswith({True: "Yes", False: "No", None: "Too noisy to say"}[pays])


def test_a_change_counts_growth_other_answers_and_scores():
    ids = [[1, 2, 3], [4, 5], [6]], [[1, 2, 3], [4, 9, 9, 9], [7]]
    one = change(0.5, 2.0, *ids, lambda place, answer: 1.0 if answer[-1] == 9 else 0.5 * place)
    assert (one.tokens, one.forwards, one.changed) == pytest.approx((8 / 3, 4 / 3, 2 / 3))
    assert (one.score, one.lost, one.gained, one.square) == pytest.approx((2 / 3, 0, 1, 0.25 / 3))
    assert change(0.5, 2.0, *ids, None).score is None


def test_a_budget_needs_more_prompts_where_more_scores_change():
    few, many = (
        measured.plan(seen(square=square), 0.02, 0.95).split()[9] for square in (5 / 12, 0.01)
    )
    assert int(few) > 1500 > int(many) > 100


def test_near_ties_and_half_of_the_mismatches_lie_between_strict_decoding_and_all_drafts():
    found = examine(STRICT, [[1, 2, 3], [4, 5]], lambda place, ids: 1.0, max_new_tokens=20)
    assert [one.r for one in found.changes] == [1, 0.9, 0.5, 0.2] and 0 < found.agreement < 1
    assert found.changes[0].tau <= found.changes[-1].tau and found.changes[0].changed == 0
    for one in (each for some in found.outlooks for each in some):
        assert 0 < one.strict <= one.half <= one.ceiling
    with pytest.raises(UserError, match="at least one prompt"):
        examine(STRICT, [], None, max_new_tokens=4)


def test_costs_of_a_real_pair_are_measured_on_few_prompts_without_reading_them():
    unreadable = [10**9]
    for costs in measure(STRICT, [[1, 2, 3], [4, 5]], (2, 4), max_new_tokens=24):
        assert costs.step > 0 and costs.draft > 0 and 0 < costs.verify[2] <= costs.verify[4]
    with pytest.raises(UserError, match="first round"):
        measure(STRICT, [[1, 2, 3]], (2,), max_new_tokens=1)
    assert (
        measure(STRICT, [[1, 2, 3]] * measured.TIMED + [unreadable], (2,), max_new_tokens=8)[0].step
        > 0
    )
    with pytest.raises(UserError, match="token id 1000000000"):
        measure(STRICT, [[1, 2, 3]] * (measured.TIMED - 1) + [unreadable], (2,), max_new_tokens=8)


@pytest.mark.parametrize(
    ("noise", "turns"), [((1.0, 1.0), measured.TURNS), ((1.0, 1.3), measured.MOST)]
)
def test_costs_are_measured_until_both_halves_of_the_turns_agree(monkeypatch, noise, turns):
    """The least time counts, and shorter drafts never cost more than longer ones."""
    taken = []

    def generate(decoder, prompts, max_new_tokens, **_):
        taken.append(max_new_tokens)
        scale = noise[
            (len(taken) - 1) // 6 % 2
        ]  # six runs make a turn: plainly and with two K, whole and begun
        rounds, steps = -(-max_new_tokens // (decoder.block + 1)), decoder.block
        draft, verify = 0.2 * steps * rounds * scale, (1.5 if steps == 2 else 1.2) * rounds * scale
        seconds = {"draft": draft, "verify": verify, "total": rounds * 1.0}
        return [
            Generation(
                [7] * max_new_tokens,
                [],
                "length",
                Statistics(rounds, steps * rounds, seconds=seconds),
            )
        ]

    monkeypatch.setattr(Decoder, "generate", generate)
    costs = measure(STRICT, [[1, 2, 3]], (2, 4), max_new_tokens=45)
    assert len(taken) == 6 * turns
    assert costs[0].draft == pytest.approx(0.2) and costs[0].verify == pytest.approx(
        {2: 1.2, 4: 1.2}
    )
    assert max(one.verify[4] for one in costs) == pytest.approx(1.2 * max(noise))


def test_a_mismatch_is_a_draft_token_that_was_refused():
    """Not a round in which less than K tokens, or none, were found to draft."""
    counted = []
    for drafter in (PromptLookup(), ModelDrafter(DRAFT)):
        counter = Mismatches(8)
        decoder = Decoder(TARGET, drafter, Exact(), 8, observer=counter)
        answers = [decoder.generate([ids], max_new_tokens=24)[0] for ids in ([1, 2, 3], [4, 5])]
        found = total([answer.statistics for answer in answers])
        counted.append(
            (counter.number, sum(n for length, n in found.histogram.items() if length < 8))
        )
    (by_lookup, short), _ = counted
    assert by_lookup < short and counted[1][0] > 0


def test_cut_answers_are_counted_apart_from_those_that_end_at_the_limit():
    ends = ((30, "eos"), (64, "length"), (64, "eos"), (50, "stop"))
    answers = [Generation([7] * tokens, [], finish, Statistics()) for tokens, finish in ends]
    assert measured.lengths_of(answers, 64) == {"answers": 4, "cut": 1, "longest": 64, "limit": 64}


@pytest.mark.parametrize(("found", "said"), [
    ((20, 0, 51, 64), "A limit of 80 tokens"),  # half as long again as the longest
    ((20, 2, 213, 400), "A limit of 320 tokens"),  # two never end
    ((20, 5, 158, 160), "--max-new-tokens 640"),  # the others end right below the limit
    ((20, 15, 20, 64), "--max-new-tokens 256"),  # a base model that goes on behind its answer
])  # fmt: skip
def test_answers_that_end_propose_a_limit_and_one_that_cuts_whole_answers_has_to_be_raised(
    found, said
):
    assert said in limit_advice(*found)
