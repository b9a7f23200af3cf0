"""Tuning on made-up times: half of the prompts choose, the other half decides, and doubt decides
for strict.
"""

from dataclasses import replace

import pytest

from gistgate.core.utils import UserError
from gistgate.measure import tune as tuning
from gistgate.measure.tune import Candidate, tune
from tests.certificates.proofs import certificate

PROMPTS = [[place] for place in range(12)]


@pytest.fixture
def race(monkeypatch):
    """Race candidates whose seconds per prompt are given as (when choosing, when deciding)."""

    def run(**seconds):
        def times_of(candidates, prompts, request):
            at = 0 if prompts == PROMPTS[:6] else 1
            return {
                one.name: [seconds[one.name][at] + 0.01 * (ids[0] % 3) for ids in prompts]
                for one in candidates
            }

        monkeypatch.setattr(tuning, "times_of", times_of)
        made = [Candidate(name, None) for name in seconds]
        certified = [
            replace(one, certificate=certificate()) if "loose" in one.name else one for one in made
        ]
        return tune(certified, PROMPTS)

    return run


def test_the_fastest_certified_setting_wins(race):
    found = race(plain=(4, 4), slow=(3, 3), strict=(2, 2), loose_a=(1.5, 1.5), loose_b=(1.0, 1.0))
    assert found.winner.name == "loose_b" and found.strict.name == "strict"
    assert found.to_strict.low > 1.5 and found.to_plain["loose_b"].mean == pytest.approx(
        4.01 / 1.01
    )


def test_luck_when_choosing_does_not_decide(race):
    found = race(plain=(4, 4), strict=(2, 2), loose=(1, 2.1))
    assert found.loose.name == "loose" and found.winner is None


def test_a_setting_slower_than_plain_decoding_does_not_win(race):
    found = race(plain=(1, 1), strict=(3, 3), loose=(2, 2))
    assert found.to_strict.low > 1 and found.winner is None


def test_nothing_certified_means_no_winner(race):
    found = race(plain=(4, 4), strict=(2, 2))
    assert found.loose is None and found.to_strict is None and found.winner is None


def test_two_prompts_say_nothing():
    with pytest.raises(UserError, match="at least 4 prompts"):
        tune([], PROMPTS[:2])
