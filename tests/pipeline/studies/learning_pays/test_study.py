"""The study over the world's dials, with stages that write made-up reports."""

import json

import pytest

from gistgate.errors import UserError
from pipeline.params import Params, read_params
from pipeline.studies.learning_pays import figure as when_learning_figure
from pipeline.studies.learning_pays import study as study


def method(tau: float) -> dict:
    difference = {"mean": 0.0, "low": 0.0, "high": 0.0}
    return {
        "knob": 0.1,
        "certified_bound": 0.02,
        "mean_accepted_length": tau,
        "accuracy_difference": difference,
        "n": 10,
        "budget": 0.03,
    }


def calibration(name: str, settings: dict[float | None, float], passed: float | None) -> dict:
    """A calibration file: tau by value of the knob, and the value that was certified."""
    knob, fixed = None if name == "exact" else "risk", {"window": 2} if name == "fly" else {}
    kept = {"certified": name == "exact" or passed is not None, "bound": 0.029, "refusal": None, "knob": passed}
    rows = [
        {"knob": value, "fixed": fixed, "mean_accepted_length": tau, "loss": 0.01, "n": 1000, "accuracy": 0.9}
        for value, tau in settings.items()
    ]
    verdict = {**kept, "fixed": fixed if kept["certified"] else None, "n": 1000}
    return {"headline_budget": 0.03, "knob": knob, "settings": rows, "budgets": {"0.02": {}, "0.03": verdict}}


def fake_report(folder) -> None:
    """What a finished copy leaves behind, as far as the study reads it."""
    for path, value in {
        "models/pair.json": {"target": {"accuracy": 0.9}, "draft": {"accuracy": 0.5}},
        "models/heads/logistic/metrics.json": {"ap": 0.9},
        "reports/calibration/free/exact.json": calibration("exact", {None: 3.0}, None),
        "reports/calibration/free/fly.json": calibration("fly", {0.3: 4.0, 0.2: 5.0}, 0.3),
        "reports/calibration/free/typical.json": calibration("typical", {2.0: 4.5}, None),
        "reports/calibration/learned/autojudge.json": calibration("autojudge", {0.1: 6.0, 0.2: 7.0}, 0.2),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(value))


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Which stages of which copies ran; a copy's parameters stay readable in `tmp_path`."""
    ran = []

    def dvc(folder, _verb, target):
        ran.append((folder.name, target))
        if folder.name.startswith("skew-1"):
            raise UserError("The target solves no training prompt.")
        if target == study.TARGETS[-1]:
            fake_report(folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "prepare", lambda folder, _changes: folder.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(study, "dvc", dvc)
    return ran


def test_finished_points_are_kept_and_skipped_and_a_failure_stops_no_other(stages):
    assert study.study(["skew-1", "skew-0"], 1, lambda: True) == ["skew-1/seed-1"]
    assert [target for folder, target in stages if folder == "skew-0-1"] == list(study.TARGETS)
    point = study.recorded()["skew-0/seed-1"]
    assert point["changes"] == {"world": {"skew": 0.0}}
    fly, typical, strict = (point["methods"][name] for name in ("fly", "typical", "exact"))
    assert (fly["knob"], fly["fixed"], fly["mean_accepted_length"], fly["n"]) == (0.3, {"window": 2}, 4.0, 1000)
    assert (typical["certified_bound"], typical["mean_accepted_length"]) == (None, 3.0), "refused: runs strictly"
    assert (strict["certified_bound"], strict["mean_accepted_length"]) == (0.0, 3.0)
    assert when_learning_figure.lead(point) == pytest.approx(7 / 4)
    assert not (study.SCRATCH / "when-learning-pays" / "skew-0-1").exists()
    before = len(stages)
    assert study.study(["skew-0"], 1, lambda: True) == []
    assert len(stages) == before
    study.study(["skew-0"], 2, lambda: True)
    assert set(study.recorded()) == {"skew-0/seed-1", "skew-0/seed-2"}


def test_a_point_without_time_stays_where_it_is(stages):
    left = iter([True, True, True, False])
    assert study.study(["skew-0", "neutral"], 1, lambda: next(left)) == []
    assert stages == [("skew-0-1", "pair"), ("skew-0-1", "reference")]
    assert study.recorded() == {}
    assert (study.SCRATCH / "when-learning-pays" / "skew-0-1").exists()


def test_changed_sizes_measure_a_point_again(stages, monkeypatch):
    study.study(["neutral"], 1, lambda: True)
    monkeypatch.setattr(study, "SIZES", {**study.SIZES, "prompts": {"test": 9}})
    stages.clear()
    study.study(["neutral"], 1, lambda: True)
    assert len(stages) == len(study.TARGETS)


@pytest.mark.parametrize("name", study.POINTS)
def test_every_point_is_a_valid_set_of_parameters(name, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "copy_project", lambda folder: None)
    study.prepare(tmp_path, {**study.merged(study.SIZES, study.POINTS[name]), "seed": 2})
    params = read_params(tmp_path / "params.yaml")
    assert isinstance(params, Params) and params.seed == 2
    assert set(params.methods) == set(when_learning_figure.METHODS)
    plain = read_params(study.ROOT / "params.yaml")
    changed = (params.world, params.pair_training.target, params.pair_training.draft) != (
        plain.world,
        plain.pair_training.target,
        plain.pair_training.draft,
    )
    assert changed == (name != "similar")


def test_unknown_points_are_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="Did you mean 'skew-0'"):
        study.main(["skew0"])


def test_the_figure_shows_published_and_new_points(monkeypatch):
    monkeypatch.chdir(study.ROOT)
    new = {"point": "skew-0", "seed": 2, "budget": 0.03, "methods": {"exact": method(3.0), "autojudge": method(6.0)}}
    assert when_learning_figure.lead(new) == pytest.approx(2)
    points = [*when_learning_figure.published(), new]
    upper, lower = when_learning_figure.draw(points).axes
    assert [text.get_text() for text in lower.get_xticklabels()][-1] == "skew-0\nseed 2"
    assert len(lower.patches) == len(points)
    assert {"autojudge", "fly", "exact"} <= {text.get_text() for text in upper.get_legend().get_texts()}


def test_methods_calibrated_later_stand_beside_those_of_a_published_run(tmp_path, monkeypatch):
    monkeypatch.chdir(study.ROOT)
    monkeypatch.setattr(when_learning_figure, "BESIDE", tmp_path)
    before = when_learning_figure.published()[1]["methods"]
    (tmp_path / "neutral").mkdir()
    for name, passed in (("mars", 0.3), ("top-k", None)):
        (tmp_path / "neutral" / f"{name}.json").write_text(json.dumps(calibration(name, {0.3: 7.5}, passed)))
    similar, neutral, _ = when_learning_figure.published()
    assert neutral["methods"]["mars"]["mean_accepted_length"] == 7.5
    assert neutral["methods"]["top-k"]["mean_accepted_length"] == before["exact"]["mean_accepted_length"]
    assert neutral["methods"].keys() == before.keys() | {"mars", "top-k"}
    assert similar["point"] == "similar"


def test_the_table_says_which_methods_have_no_certificate():
    rows = {"exact": {**method(3.0), "accuracy": 0.5}, "fly": {**method(3.0), "certified_bound": None}}
    point = {"point": "x", "seed": 1, "methods": {**rows, "autojudge": method(6.0)}}
    line = when_learning_figure.table([point]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert (cells[:3], cells[-3:]) == (["x", "50", "6.00 (2.0)"], ["3.00 (none)", "3.00 (2.0)", "2.00"])


def test_the_page_shows_what_was_measured(monkeypatch):
    monkeypatch.chdir(study.ROOT)
    page = (study.ROOT / "docs" / "when-learning-pays.md").read_text()
    shown = page.split("<!-- points: begin -->\n")[1].split("<!-- points: end -->")[0]
    assert shown == when_learning_figure.table([*when_learning_figure.published(), *study.recorded().values()])
    assert all(f"`{name}`" in page for name in study.POINTS)
