"""A policy is fitted to what was accepted, and ends drafts at the best of the floors."""

from collections import Counter

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.drafters.text import PromptLookup
from gistgate.measure.fit_draft import (
    DraftRecorder,
    Round,
    accepted_by_confidence,
    fit,
    fit_stopping,
    promise,
)
from gistgate.rules import make_rule
from tests.architectures import pair, prompts

CHEAP = Costs(1.0, 0.01, {1: 1.0, 4: 1.0})
DEAR = Costs(1.0, 0.4, {1: 1.0, 4: 1.0})
ROUNDS = (
    [Round([0.9] * 4, 4)] * 80
    + [Round([0.9, 0.3, 0.9, 0.9], 1)] * 60
    + [Round([0.3, 0.9, 0.9, 0.9], 0)] * 20
)


def test_the_map_counts_tested_tokens_alone():
    points = dict(accepted_by_confidence(ROUNDS))
    assert points == {0.3: 0.0, 0.9: 1.0}


def test_dear_drafts_end_at_the_improbable_token_and_free_ones_do_not():
    dear = fit(ROUNDS, DEAR, rule="exact", block=4)
    assert [dear.length(ROUNDS[place].confidences) for place in (0, 80, 140)] == [4, 2, 1]
    assert promise(dear, ROUNDS, DEAR)["speed"] > promise(Stopping(0.0), ROUNDS, DEAR)["speed"]
    assert (dear.measured["cost"], dear.measured["rounds"]) == (0.4, 160)
    assert dear.measured["verify"] == {"1": 1.0, "4": 1.0}
    wrong = [Round([0.9, 0.3], 2), Round([0.9, 0.3], 1)] * 100
    assert fit(wrong, CHEAP, rule="exact", block=2).length([0.9, 0.3]) == 2


def test_promises_are_tau_over_costs():
    rounds = [Round([0.9, 0.9, 0.3], 2), Round([0.2], 0)]
    expected = {"tau": 2.0, "drafted": 2.0, "speed": 4 / (2 + 4 * 0.4)}
    assert promise(Stopping(0.5), rounds, DEAR) == pytest.approx(expected)


def test_too_few_tokens_are_refused():
    with pytest.raises(UserError, match="Only 5 draft tokens were tested"):
        accepted_by_confidence([Round([0.5] * 6, 4)])


def decoder(drafter, block=4):
    return Decoder(pair("llama")[0], drafter, make_rule("exact"), block)


def test_recorded_rounds_are_those_of_the_statistics():
    recorder = DraftRecorder()
    watched = decoder(ModelDrafter(pair("llama")[1])).watched_by(recorder)
    answers = watched.generate(prompts(5, 9), max_new_tokens=30)
    histogram = Counter(total([answer.statistics for answer in answers]).histogram)
    accepted = Counter(round.accepted for round in recorder.rounds)
    del histogram[0], accepted[0]  # rounds without a draft are not recorded
    assert accepted == histogram
    assert all(0 < q <= 1 for round in recorder.rounds for q in round.confidences)


def test_a_policy_of_a_pair_names_rule_and_block():
    batch = prompts(5, 9, 2, 12)
    stopping = fit_stopping(decoder(ModelDrafter(pair("llama")[1])), batch, max_new_tokens=80)
    assert (stopping.measured["rule"], stopping.measured["block"]) == ("exact", 4)
    assert stopping.measured["cost"] > 0 and stopping.measured["expected"]["policy"]["tau"] >= 1


@pytest.mark.parametrize(
    "drafter", [None, PromptLookup(), ModelDrafter(pair("llama")[1], Stopping(0.5))]
)
def test_only_whole_chains_of_a_model_are_recorded(drafter):
    with pytest.raises(UserError, match="whole chains of a draft model"):
        fit_stopping(decoder(drafter), prompts(5), max_new_tokens=8)
