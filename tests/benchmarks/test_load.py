"""Requests under load: what is sent, what is counted, and how ratios are formed."""

from __future__ import annotations

import pytest

from benchmarks.load import Level, Round, Waited, arrivals, drive
from benchmarks.serving import against
from tests.integrations.endpoints.scripted import Script, serving


@pytest.mark.parametrize("level", [Level(users=2), Level(rate=200.0)])
def test_every_prompt_is_asked_once_and_its_tokens_are_counted(level):
    script = Script()
    with serving(script) as url:
        done = drive(url.removesuffix("/v1"), "adder", [[7], [8], [9]], level, length=20, seed=0)
    assert sorted(body["prompt"][0] for body in script.asked) == [7, 8, 9]
    assert {body["max_tokens"] for body in script.asked} == {20}
    assert [one.tokens for one in done.waited] == [5, 5, 5] and done.tokens == 15
    assert all(0 < one.first <= one.total <= done.seconds for one in done.waited)


def test_an_open_loop_has_the_rate_and_equal_seeds_have_equal_arrivals():
    times = arrivals(2000, Level(rate=4.0), seed=1)
    assert times == arrivals(2000, Level(rate=4.0), seed=1) != arrivals(2000, Level(rate=4.0), seed=2)
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] == pytest.approx(500, rel=0.1)
    assert arrivals(3, Level(users=8), seed=1) == [0, 0, 0]


def test_a_ratio_compares_tokens_per_second_and_not_seconds():
    def rounds(tokens, seconds):
        return [Round(seconds, [Waited(tokens, 0.1, 0.5)])] * 4

    found = against(rounds(30, 2.0), rounds(10, 1.0))
    assert found["tokens_per_second"] == found["best_tokens_per_second"] == 15
    assert found["vs_plain"]["mean"] == pytest.approx(1.5) == found["vs_plain"]["low"]
    assert found["n"] == 4 and found["between_tokens"] == pytest.approx(0.4 / 29)


def test_the_best_round_is_the_one_without_a_disturbance():
    found = against([Round(seconds, [Waited(30, 0.1, 0.5)]) for seconds in (60.0, 2.0, 3.0)], [Round(1.0, [])] * 3)
    assert found["best_tokens_per_second"] == 15 > found["tokens_per_second"]
