"""Fixed sequences with early stopping: what is certified, when decoding ends, and that the error is kept."""

import numpy as np
import pytest
from scipy.stats import binom

from gistgate.certificates.bernstein import PLUG_IN
from gistgate.certificates.betting import BETTING
from gistgate.certificates.bounds import EXACT
from gistgate.certificates.sequence import passed, try_setting, try_settings
from gistgate.errors import UserError
from pipeline.certification.trial import Decoded


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
    tested = try_setting(chunks(np.zeros(800), seen=seen), [0.01], 0.95, "planned")
    assert (sum(seen), tested.within, tested.bounds[0].kind) == (800, (True,), EXACT)


def test_lost_leaves_a_setting_that_loses_and_never_certifies_early():
    seen = []
    lost = try_setting(chunks(fair(4000, 0.2), seen=seen), [0.01, 0.02], 0.95, "lost")
    assert sum(seen) < 500
    assert (lost.within, lost.watched[1]) == ((False, False), "beyond")
    seen.clear()
    kept = try_setting(chunks(np.zeros(4000), seen=seen), [0.02], 0.95, "lost")
    assert (sum(seen), kept.within, kept.watched) == (4000, (True,), (None,))


def test_clear_stops_on_either_answer():
    seen = []
    kept = try_setting(chunks(np.zeros(4000), seen=seen), [0.02], 0.95, "clear")
    assert sum(seen) < 1000
    assert (kept.within, kept.bounds[0].kind) == ((True,), BETTING)
    assert kept.bounds[0].value <= 0.02


def test_clear_shares_the_error():
    """On the edge of the budget no more than 5 % of the sequences may certify; 150 draws, binomial at the 1 % level."""
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(150):
        d = rng.choice([1.0, -1.0, 0.0], size=600, p=[0.035, 0.005, 0.96])  # mean 0.03
        wrong += try_setting(chunks(d, 200), [0.03], 0.95, "clear").within[0]
    assert wrong <= binom.isf(0.01, 150, 0.05)


def test_scores_that_are_not_right_or_wrong_get_the_plug_in_bound():
    d = np.random.default_rng(0).normal(0, 0.02, 2000).clip(-1, 1)
    tested = try_setting(chunks(d), [0.02], 0.95, "planned", ternary=False)
    assert (tested.bounds[0].kind, tested.within) == (PLUG_IN, (True,))
    equal = try_setting(chunks(np.zeros(500)), [0.02], 0.95, "planned", ternary=False)
    assert equal.bounds[0].kind == PLUG_IN


def test_the_sequence_ends_at_the_first_failure_of_the_largest_budget():
    asked = []

    def setting(name, d):
        def make():
            asked.append(name)
            return chunks(d)

        return make

    sequence = [setting("strict", np.zeros(1000)), setting("loose", fair(1000, 0.3)), setting("never", np.zeros(1000))]
    tested = try_settings(sequence, [0.01, 0.02], 0.95, "lost")
    assert asked == ["strict", "loose"]
    assert (passed(tested, 0), passed(tested, 1)) == (0, 0)


def test_an_unknown_way_to_stop_is_refused():
    with pytest.raises(UserError, match="no way to stop called 'soon'"):
        try_settings([], [0.01], 0.95, "soon")
