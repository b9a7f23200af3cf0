"""Several occasions of one measurement: intervals cover all of them, and what does not belong together is refused."""

import pytest

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.report.publish import other_measurement, publish_again
from pipeline.report.tables import caption
from pipeline.speed.occasions import joined

FIRST = {"block": 4, "n": 100, "tokens_per_second": 10.0, "vs_plain": {"mean": 2.0, "low": 1.9, "high": 2.1}}
SECOND = {"block": 4, "n": 98, "tokens_per_second": 14.0, "vs_plain": {"mean": 0.5, "low": 0.4, "high": 0.6}}
BOTH = {"block": 4, "n": 98, "tokens_per_second": 12.0, "vs_plain": {"mean": 1.0, "low": 0.4, "high": 2.1}}


def test_intervals_cover_both_occasions():
    assert joined([{"a": FIRST}, {"a": SECOND}]) == {"a": BOTH} and joined([FIRST]) == FIRST


def test_every_occasion_has_the_same_weight():
    found = joined([FIRST, SECOND, SECOND])
    assert found["tokens_per_second"] == pytest.approx((10 + 14 + 14) / 3)
    assert found["vs_plain"] == {"mean": pytest.approx((2.0 * 0.5 * 0.5) ** (1 / 3)), "low": 0.4, "high": 2.1}


def test_what_one_occasion_lacks_comes_from_the_others():
    rival = {"vs_rival": FIRST["vs_plain"]}
    assert joined([{"a": FIRST, "b": FIRST | rival}, {"a": SECOND}]) == {"a": BOTH, "b": FIRST | rival}
    assert joined([{"a": FIRST | rival}, {"a": SECOND}]) == {"a": BOTH | rival}


def summary(speed, tau=4.0):
    unchanged = {"mean": 0.0, "low": 0.0, "high": 0.0}
    methods = {"exact": {"mean_accepted_length": tau, "n": 10, "speed": speed, "accuracy_difference": unchanged}}
    return {
        "methods": methods,
        "pair": "p",
        "task": "t",
        "seed": 1,
        "headline_budget": 0.03,
        "plain": {"accuracy": 1.0},
    }


def test_speeds_of_two_machines_are_no_occasions_of_one_run():
    here, there = ({"n": 3, "machine": {"threads": number}} for number in (1, 2))
    assert other_measurement(here, here) is None and other_measurement(here, {"n": 3}) is None
    assert "machine" in str(other_measurement(here, there))


def test_a_run_that_was_timed_again_is_published_with_wider_speeds(tmp_path):
    reports, published = tmp_path / "reports", tmp_path / "results"
    write_json(reports / "summary.json", summary({"vs_plain": SECOND["vs_plain"]}))
    code = {"code": {"fingerprint": "f", "commit": "c"}}
    write_json(published / "summary.json", summary({"vs_plain": FIRST["vs_plain"]}) | code)
    (published / "figures").mkdir()
    (published / "figures/speed.png").write_text("of the first occasion")
    publish_again(reports, published, code)
    assert (published / "figures/speed.png").read_bytes().startswith(b"\x89PNG")
    found = read_json(published / "summary.json")
    assert found["methods"]["exact"]["speed"]["vs_plain"] == BOTH["vs_plain"]
    assert code["code"].items() <= found["code"].items()
    assert "measured on 2 occasions" in caption(found) and "occasions" not in caption(summary({}))
    with pytest.raises(UserError, match="are published already"):  # one measurement is one occasion
        publish_again(reports, published, code)
    other = {**SECOND["vs_plain"], "high": SECOND["vs_plain"]["high"] + 0.01}
    write_json(reports / "summary.json", summary({"vs_plain": other}))
    publish_again(reports, published, code)
    third = read_json(published / "summary.json")
    assert third["methods"]["exact"]["speed"]["vs_plain"]["mean"] == pytest.approx(0.5 ** (1 / 3))
    assert "measured on 3 occasions" in caption(third)
    write_json(reports / "summary.json", summary({}) | {"timed": {"blocks": {"transformers_assisted": 8}}})
    with pytest.raises(UserError, match="chose another K"):
        publish_again(reports, published, code)
    write_json(reports / "summary.json", summary({}) | {"timed": {"blocks": None, "n": 3}})
    with pytest.raises(UserError, match="another number of prompts"):
        publish_again(reports, published, code)
    with pytest.raises(UserError, match="was made by other code"):
        publish_again(reports, published, {"code": {"fingerprint": "g"}})
    write_json(reports / "summary.json", summary({}, tau=5.0))
    with pytest.raises(UserError, match="holds another run"):
        publish_again(reports, published, code)
