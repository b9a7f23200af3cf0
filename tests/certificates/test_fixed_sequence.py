"""Fixed sequences with early stopping: what is certified, when decoding ends, and that the error is
kept.
"""

import numpy as np
import pytest
from scipy.stats import binom

from gistgate.certificates.bounds import BETTING, EXACT, betting_bound, exact_bound, longer_bound
from gistgate.certificates.fixed_sequence import fixed_sequence, try_setting
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import confidence_of_test, needed_n, would_certify
from tests.certificates.proofs import spread_out


def chunks(d, size=100, seen=None):
    """Differences in pieces; `seen` counts the prompts that were asked for."""
    for start in range(0, len(d), size):
        if seen is not None:
            seen.append(len(d[start : start + size]))
        yield Decoded(np.asarray(d[start : start + size], float))


def fair(n, rate, seed=0):
    """Differences of right-or-wrong scores with `rate` losses and no gain."""
    return (np.random.default_rng(seed).random(n) < rate).astype(float)


def test_planned_decodes_all_and_takes_the_exact_bound():
    seen = []
    for d, kept in ((np.zeros(800), True), (np.ones(800), False)):
        seen.clear()
        tested = try_setting(chunks(d, seen=seen), [0.01], 0.95, "planned")
        assert sum(seen) == 800
        assert (tested.within, tested.answers) == ({0.01: kept}, {0.01: None})
        assert tested.bounds[0.01].kind == EXACT


def test_lost_leaves_a_setting_that_loses_and_never_certifies_early():
    seen = []
    lost = try_setting(chunks(fair(4000, 0.2), seen=seen), [0.01, 0.02], 0.95, "lost")
    assert sum(seen) < 500
    assert (lost.within, lost.answers[0.02]) == ({0.01: False, 0.02: False}, "beyond")
    seen.clear()
    kept = try_setting(chunks(np.zeros(4000), seen=seen), [0.02], 0.95, "lost")
    assert (sum(seen), kept.within, kept.answers) == (4000, {0.02: True}, {0.02: None})
    seen.clear()
    both = try_setting(chunks(fair(2000, 0.1), seen=seen), [0.01, 0.3], 0.95, "lost")
    assert sum(seen) == 2000  # because the largest is open
    assert both.within == {0.01: False, 0.3: True}
    assert both.answers == {0.01: "beyond", 0.3: None}


def test_clear_stops_on_either_answer():
    seen = []
    kept = try_setting(chunks(np.zeros(4000), seen=seen), [0.02], 0.95, "clear")
    bound = kept.bounds[0.02]
    assert sum(seen) < 1000 and bound.value <= 0.02
    assert (kept.within, bound.kind) == ({0.02: True}, BETTING)
    level = 1 - confidence_of_test("clear", 0.95, exact=True)
    assert bound.value == pytest.approx(betting_bound(np.zeros(sum(seen)), level))
    verdicts = fixed_sequence([chunks(np.zeros(4000))], [0.02], 0.95, "clear")
    assert verdicts.bound(0.02).kind == BETTING


def test_a_setting_has_to_keep_the_budget_and_the_growth():
    """Loose answers are 2 % longer on average, with a spread of a tenth of the limit."""
    rng = np.random.default_rng(0)
    strict = rng.integers(60, 140, 2000)
    tokens = np.stack([strict, strict * 1.02 + rng.normal(0, 20, 2000), np.full(2000, 200)], -1)
    for growth, kept in ((None, True), (0.05, True), (0.01, False)):
        decoded = Decoded(np.zeros(2000), [], tokens)
        verdicts = fixed_sequence([[decoded]], [0.02], 0.95, growth=growth)
        assert (verdicts.passed(0.02) == 0) is kept
        assert 0.02 < verdicts.tested[0].growth_bound < 0.05
    assert "answers may grow by" in verdicts.refusal(0.02)


def test_the_bound_on_growth_covers_it():
    """100 draws with 10 % longer answers: binomial at the 1 % level, at most 11 bounds may miss."""
    missed = 0
    rng = np.random.default_rng(1)
    for _ in range(100):
        strict = rng.integers(20, 100, 300)
        loose = np.minimum(strict * np.where(rng.random(300) < 0.5, 1.0, 1.2), 200)
        missed += longer_bound(strict, loose, 200, 0.95) < 0.1
    assert missed <= 11


def test_a_setting_has_to_keep_the_budget_and_the_fluency():
    rng = np.random.default_rng(0)
    lost = rng.normal(0.02, 0.05, 500)  # nats per token
    for fluency, kept in ((None, True), (0.05, True), (0.02, False)):
        decoded = Decoded(np.zeros(500), fluency=lost)
        verdicts = fixed_sequence([[decoded]], [0.02], 0.95, fluency=fluency)
        assert (verdicts.passed(0.02) == 0) is kept
        assert 0.02 < verdicts.tested[0].fluency_bound < 0.05
    assert "nats less probable" in verdicts.refusal(0.02)
    assert not fixed_sequence([[Decoded(np.zeros(500))]], [0.02], 0.95, fluency=0.05).passed(0.02)


@pytest.mark.parametrize(
    ("values", "shares"),
    [
        ([1.0, 0.0], [0.05, 0.95]),  # rare answers that lose all
        ([0.25, -0.15], [0.5, 0.5]),
        ([0.1, 0.0], [0.5, 0.5]),
    ],
)
def test_two_claims_share_one_error(values, shares):
    """1,000 draws that lose as much log-probability as is allowed and no score: at most 5 % may
    certify, binomial at the 1 % level.
    """
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(1000):
        decoded = Decoded(np.zeros(200), fluency=rng.choice(values, 200, p=shares))
        wrong += try_setting([decoded], [0.02], 0.95, "planned", fluency=0.05).within[0.02]
    assert wrong <= binom.isf(0.01, 1000, 0.05)


@pytest.mark.slow
def test_clear_shares_the_error():
    """On the edge of the budget no more than 5 % of the sequences may certify; 150 draws, binomial
    at the 1 % level.
    """
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(150):
        d = rng.choice([1.0, -1.0, 0.0], size=600, p=[0.035, 0.005, 0.96])  # mean 0.03
        wrong += try_setting(chunks(d, 200), [0.03], 0.95, "clear").within[0.03]
    assert wrong <= binom.isf(0.01, 150, 0.05)


def sequence(*settings):
    """The chunks of settings that are given by their differences."""
    return ([Decoded(np.asarray(d, float))] for d in settings)


def test_the_sequence_stops_at_the_first_failure_and_asks_for_nothing_behind_it():
    read = []

    def decoded():
        for losses in (2, 5, 60, 0):
            read.append(losses)
            yield [Decoded(spread_out(losses, 0, 1000))]

    verdicts = fixed_sequence(decoded(), [0.03], 0.95)
    assert (verdicts.passed(0.03), read) == (1, [2, 5, 60])
    assert verdicts.bound(0.03) is verdicts.tested[1].bounds[0.03]
    assert (verdicts.refusal(0.03), verdicts.needed(0.03)) == (None, None)


def test_each_budget_keeps_the_last_setting_before_its_own_first_failure():
    settings = [spread_out(losses, 0, 1000) for losses in (2, 15, 3, 60)]
    verdicts = fixed_sequence(sequence(*settings), [0.01, 0.03], 0.95)
    assert (verdicts.passed(0.01), verdicts.passed(0.03)) == (0, 2)
    assert verdicts.shown(0.01) is verdicts.tested[0]
    settings = sequence(np.zeros(1000), fair(1000, 0.3), np.zeros(1000))
    verdicts = fixed_sequence(settings, [0.01, 0.02], 0.95, "lost")
    assert len(verdicts.tested) == 2
    assert (verdicts.passed(0.01), verdicts.passed(0.02)) == (0, 0)


def test_a_refusal_names_the_number_of_prompts_that_would_do():
    verdicts = fixed_sequence(sequence(spread_out(30, 25, 1000), np.zeros(1000)), [0.01], 0.95)
    assert (verdicts.passed(0.01), len(verdicts.tested)) == (None, 1)
    needed = verdicts.needed(0.01)
    assert needed == needed_n(0.01, 0.95, 0.055, 0.005, more_than=1000) > 1000
    refusal = verdicts.refusal(0.01)
    assert f"about {needed} prompts" in refusal
    assert f"{exact_bound(30, 25, 1000, 0.05):.2%}" in refusal
    enough = spread_out(round(0.03 * needed), round(0.025 * needed), needed)
    assert fixed_sequence(sequence(enough), [0.01], 0.95).passed(0.01) == 0


def test_no_number_of_prompts_helps_where_the_loss_uses_up_the_budget_or_it_is_lost():
    verdicts = fixed_sequence(sequence(spread_out(40, 10, 1000)), [0.03], 0.95)
    assert verdicts.needed(0.03) is None
    assert "more prompts would not help" in verdicts.refusal(0.03)
    pieces = (Decoded(part) for part in np.array_split(spread_out(400, 0, 1000), 10))
    verdicts = fixed_sequence([pieces], [0.02], 0.95, "lost")
    assert "is lost at the strictest setting tested: 100 prompts" in verdicts.refusal(0.02)


def test_prompts_that_would_do_are_named_by_the_bound_that_refused():
    d = np.random.default_rng(0).uniform(-0.2, 0.2, 400)
    d -= d.mean()
    verdicts = fixed_sequence(sequence(d), [0.01], 0.95, "lost", False)
    bound = verdicts.bound(0.01)
    named = verdicts.needed(0.01)
    assert bound.kind == BETTING
    assert named > 400 and not would_certify(400, 0.01, 0.95, bound.spread, bound.mean, exact=False)
    for n, kept in ((named, True), (named - 20, False)):
        tested = try_setting([Decoded(np.resize(d, n))], [0.01], 0.95, "lost", False)
        assert tested.within == {0.01: kept}
