"""The coverage benchmark counts what it says, on the outcomes that calibration wrote prompt by prompt."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import multinomial

from gistgate.certificates.bounds import EXACT, upper_bound
from gistgate.certificates.differences import spread_out
from gistgate.certificates.fixed_sequence import Tested, fixed_sequence
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import CERTIFIES, HOEFFDING
from gistgate.certificates.tango import p_value
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.request.statistics import Statistics
from pipeline.certification.records import write_records
from pipeline.common.operating_point import calibration_file
from pipeline.params import MethodParams, Params
from pipeline.studies.certify import coverage, stopping
from pipeline.studies.certify.coverage import World, counted, drawn, examined, headlines, issued, loosest, stopped
from pipeline.studies.certify.coverage_figure import draw
from pipeline.studies.certify.error_rate import certified_probability
from pipeline.studies.certify.recorded import recorded_methods


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A directory in which one method was calibrated at two settings; returns the parameters and the differences."""
    monkeypatch.chdir(tmp_path)
    params = Params(methods={"fly": MethodParams("fly", drafter="model", knob="theta", grid=(0.1, 0.3))})
    strict, path = np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]), calibration_file(params, "fly")
    settings = [Decoded(strict - loose, [Statistics(own=5, forwards=5)] * 6) for loose in SCORES]
    tested = [Tested(one, (upper_bound(one.differences, 0.95),), (True,), (None,)) for one in settings]
    prompts = [{"id": f"p{index}", "max_new_tokens": 5 + index} for index in range(6)]
    write_records(path.with_suffix(".csv"), tested, prompts, strict)
    counted = [
        {"knob": knob, "losses": one.bounds[0].losses, "gains": one.bounds[0].gains, "bound": one.bounds[0].value}
        for knob, one in zip((0.1, 0.3), tested)
    ]
    write_json(path, {"settings": counted})
    return params


SCORES = ([1, 1, 1, 1, 1, 0], [0, 0, 1, 0, 1, 1])
"""Scores of loose decoding, by setting."""


def test_outcomes_of_every_prompt_are_an_output_that_bounds_are_computed_from(finished):
    (fly,) = recorded_methods(finished)
    assert (fly.method, fly.knobs) == ("fly", (0.1, 0.3))
    assert fly.outcomes.tolist() == [[0, 0, 0, -1, 0, 1], [1, 1, 0, 0, 0, 0]]
    assert fly.losses == pytest.approx([0, 1 / 3])
    path = calibration_file(finished, "fly")
    written = [setting["bound"] for setting in read_json(path)["settings"]]
    assert [upper_bound(d, 0.95).value for d in fly.outcomes] == written
    assert path.with_suffix(".csv").read_text().splitlines()[:3] == [
        "setting,id,strict,loose,tokens,capped", "0,p0,1,1,5,1", "0,p1,1,1,5,0",
    ]  # fmt: skip


def test_outcomes_of_another_calibration_are_refused(finished):
    path = calibration_file(finished, "fly").with_suffix(".csv")
    path.write_text(path.read_text().replace("1,p2,1,1", "1,p2,1,0"))
    with pytest.raises(UserError, match="does not hold the outcomes.*calibrate fly"):
        recorded_methods(finished)
    path.write_text(path.read_text().replace("1,p5,", "1,p6,"))
    with pytest.raises(UserError, match="does not hold the same prompts"):
        recorded_methods(finished)


def test_the_sequence_is_the_one_of_calibration():
    settings = np.array([spread_out(losses, 10, 400) for losses in (10, 14, 40, 9)])
    for budget in (0.01, 0.03, 0.05, 0.06):
        tested = fixed_sequence(([Decoded(d)] for d in settings), [budget], 0.95)
        assert loosest(EXACT, settings, budget, 0.95) == tested.passed(budget)
    assert loosest(HOEFFDING, settings, 0.03, 0.95) is None


def test_false_certificates_are_counted(monkeypatch):
    monkeypatch.setattr(coverage, "RESAMPLES", 4)
    losses, fresh = np.array([0.01, 0.02]), [np.array([0.0, 0.03])] * 4
    found = counted([None, 0, 1, 1], losses, fresh, 0.02, 0.95)
    assert (found["share_holding"], found["certified"]) == (0.5, 3)
    assert found["fresh_loss"] == pytest.approx(0.02)
    assert found["refuted"] == (found["p_value"] < 0.01)
    assert found["p_value"] == pytest.approx(1 - 0.95**4 - 4 * 0.05 * 0.95**3)
    assert counted([None] * 4, losses, fresh, 0.02, 0.95)["share_holding"] == 1.0


def test_certificates_given_in_recorded_worlds_are_added_up():
    entries = [("recorded", 1.0, 150), ("recorded", 0.99, 50), ("boundary", 0.9, 20)]
    cases = [{"kind": k, "bounds": {EXACT: {"share_holding": s, "certified": c}}} for k, s, c in entries]
    assert issued(cases, EXACT, 0.95) == {"certificates": 200, "true": 198, "p_value": pytest.approx(1, abs=0.01)}
    assert issued(cases[2:], EXACT, 0.95) == {"certificates": 0, "true": 0, "p_value": 1.0}


def test_the_headline_is_the_lowest_on_recorded_outcomes_at_the_headline_budget():
    rows = [
        ("boundary", None, 0.03, 0.9, 0.03), ("recorded", "fly", 0.03, 0.99, 0.0),
        ("recorded", "mars", 0.03, 0.98, 0.0),
        ("recorded", "prob", 0.03, 0.98, 0.02), ("recorded", "prob", 0.01, 0.5, 0.02),
        ("recorded, at its loss", "fly", 0.02, 0.96, 0.02), ("recorded, at its loss", "prob", 0.04, 0.95, 0.04),
    ]  # fmt: skip
    cases = [
        {"kind": k, "method": m, "budget": b, "true_losses": [loss], "bounds": {EXACT: {"share_holding": s}}}
        for k, m, b, s, loss in rows
    ]
    found = headlines(cases, 0.03)
    assert (found["world"], found["method"], found["budget"], found["share_holding"]) == (
        "recorded",
        "prob",
        0.03,
        0.98,
    )
    assert found["by_method"] == {"fly": 0.99, "mars": 0.98, "prob": 0.98}
    assert (found["boundary"]["share_holding"], found["at_its_loss"]["share_holding"]) == (0.9, 0.95)


def test_the_committed_figures_begin_with_their_own_cases():
    """Whatever they say: a benchmark that finds false certificates is published all the same."""
    report = read_json(Path(__file__).parents[3] / "benchmarks/results/coverage.json")
    found = headlines(report["cases"], 0.03)
    found.pop("refuted")  # of the headline case; the report lists all cases under this name
    assert found == {name: report[name] for name in found}
    refuted = [
        coverage.named(c, bound) for c in report["cases"] for bound in CERTIFIES if c["bounds"][bound]["refuted"]
    ]
    assert report["refuted"] == refuted


def test_a_bound_that_always_certifies_is_refuted(monkeypatch):
    """The benchmark would notice a bound that is wrong."""
    monkeypatch.setattr(coverage, "RESAMPLES", 20)
    monkeypatch.setattr(coverage, "CERTIFIES", {EXACT: CERTIFIES[EXACT], "none": lambda d, budget, confidence: True})
    case = examined(World("boundary", None, 0.05, spread_out(5, 0, 100)[None]), 0.95)
    assert case["bounds"]["none"] == {**case["bounds"]["none"], "share_holding": 0.0, "refuted": True}
    assert not case["bounds"][EXACT]["refuted"]
    assert examined(World("boundary", None, 0.05, spread_out(5, 0, 100)[None]), 0.95) == case


@pytest.mark.parametrize("losses, gains, budget", [(6, 2, 0.1), (3, 3, 0.2), (0, 0, 0.05)])
def test_the_chance_of_a_certificate_is_the_sum_over_all_tables(losses, gains, budget):
    n = 40
    chances = [
        multinomial.pmf([b, c, n - b - c], n, [losses / n, gains / n, 1 - (losses + gains) / n])
        for b in range(n + 1) for c in range(n + 1 - b) if p_value(b, c, n, budget) <= 0.05
    ]  # fmt: skip
    assert certified_probability(spread_out(losses, gains, n), budget, 0.95) == pytest.approx(sum(chances), abs=1e-7)


def test_wagers_answer_by_the_truth(monkeypatch):
    monkeypatch.setattr(coverage, "RESAMPLES", 10)
    kept, lost = stopped(0.05, 0.0, 0.05, 0.95), stopped(0.01, 0.05, 0.05, 0.95)
    assert kept["share"]["within"] == lost["share"]["beyond"] == 1.0
    assert 0 < kept["prompts"]["low"] <= kept["prompts"]["median"] <= kept["prompts"]["high"] < 2000
    assert drawn(0.05, 0.05, 1000, 0).min() == 0.0


def test_the_figure_shows_every_bound():
    bounds = {bound: {"share_holding": 0.95} for bound in CERTIFIES}
    report = {
        "confidence": 0.95,
        "resamples": 200,
        "cases": [{"kind": "boundary", "budget": budget, "bounds": bounds} for budget in (0.01, 0.02)],
        "needed_prompts": [
            {"budget": budget, "discordance": 0.05, "prompts": dict.fromkeys(CERTIFIES, 100)} for budget in (0.01, 0.02)
        ],
    }
    figure = draw(report)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CERTIFIES)


@pytest.mark.parametrize("world", stopping.WORLDS)
@pytest.mark.parametrize("loss", [0.0, 0.02, 0.05])
def test_made_up_prompts_lose_what_they_should(world, loss, monkeypatch):
    monkeypatch.setattr(stopping, "PROMPTS", 200_000)
    make, ternary = stopping.WORLDS[world]
    d = make(loss, np.random.default_rng(0))
    assert d.mean() == pytest.approx(loss, abs=0.002) and np.abs(d).max() <= 1
    others = set(d.tolist()) - {-1.0, 0.0, 1.0}
    assert bool(others) == {"few large losses": loss > 0, "many small differences": True}.get(world, not ternary)


def test_stopping_early_saves_prompts_and_a_careless_way_to_stop_is_refuted(monkeypatch):
    for name, value in {"RESAMPLES": 8, "TIMED": 4}.items():
        monkeypatch.setattr(stopping, name, value)
    planned, clear = (stopping.examined("many small differences", stop, 0.03, 0.95) for stop in ("planned", "clear"))
    assert planned["kept"] == {"certified": 1.0, "prompts": 1000.0}
    assert clear["kept"]["prompts"] < 1000 and clear["lost"]["certified"] == 0.0 and not clear["refuted"]
    careless = SimpleNamespace(within=(True,), decoded=SimpleNamespace(differences=[0.0]))
    monkeypatch.setattr(stopping, "try_setting", lambda *_arguments: careless)
    found = stopping.examined("few large losses", "clear", 0.03, 0.95)
    assert (found["share_holding"], found["refuted"]) == (0.0, True)
