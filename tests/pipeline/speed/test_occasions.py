"""Two occasions of one measurement: intervals cover both, and what does not belong together is refused."""

import pytest

from benchmarks.speed import with_earlier
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.report.publish import publish_again
from pipeline.report.tables import caption
from pipeline.speed.occasions import covering

FIRST = {"block": 4, "n": 100, "tokens_per_second": 10.0, "vs_plain": {"mean": 2.0, "low": 1.9, "high": 2.1}}
SECOND = {"block": 4, "n": 50, "tokens_per_second": 14.0, "vs_plain": {"mean": 0.5, "low": 0.4, "high": 0.6}}
BOTH = {"block": 4, "n": 150, "tokens_per_second": 12.0, "vs_plain": {"mean": 1.0, "low": 0.4, "high": 2.1}}


def test_intervals_cover_both_occasions():
    assert covering({"a": FIRST}, {"a": SECOND}) == {"a": BOTH}
    with pytest.raises(UserError, match="'b' was measured on one occasion only"):
        covering({"a": FIRST, "b": FIRST}, {"a": SECOND})


def results(entry, **changes):
    return {"pair": "p", "strict_block": 4, "points": {}, "batches": {"1": {"contenders": {"a": entry}}}, **changes}


def test_the_benchmark_of_speed_joins_equal_contenders():
    found = with_earlier(results(SECOND), results(FIRST))
    assert found["batches"]["1"]["contenders"] == {"a": BOTH} and found["occasions"] == 2
    assert with_earlier(results(SECOND), results(FIRST, occasions=2))["occasions"] == 3
    with pytest.raises(UserError, match="another pair"):
        with_earlier(results(SECOND), results(FIRST, pair="q"))


def summary(speed, tau=4.0):
    methods = {"exact": {"mean_accepted_length": tau, "n": 10, "speed": speed}}
    return {
        "methods": methods,
        "pair": "p",
        "task": "t",
        "seed": 1,
        "headline_budget": 0.03,
        "plain": {"accuracy": 1.0},
    }


def test_a_run_that_was_timed_again_is_published_with_wider_speeds(tmp_path):
    reports, published = tmp_path / "reports", tmp_path / "results"
    write_json(reports / "summary.json", summary({"vs_plain": SECOND["vs_plain"]}))
    write_json(published / "summary.json", summary({"vs_plain": FIRST["vs_plain"]}))
    publish_again(reports, published, {"commit": "c"})
    found = read_json(published / "summary.json")
    assert found["methods"]["exact"]["speed"]["vs_plain"] == BOTH["vs_plain"] and found["commit"] == "c"
    assert "measured on 2 occasions" in caption(found) and "occasions" not in caption(summary({}))
    write_json(reports / "summary.json", summary({}, tau=5.0))
    with pytest.raises(UserError, match="holds another run"):
        publish_again(reports, published, {})
