"""The study over the world's dials, with stages that write made-up reports."""

import json
import sys

import pytest

from gistgate.errors import UserError
from pipeline.params import Params, read_params
from pipeline.studies import when_learning_figure
from pipeline.studies import when_learning_pays as study


def method(tau: float) -> dict:
    difference = {"mean": 0.0, "low": 0.0, "high": 0.0}
    return {
        "knob": 0.1, "certified_bound": 0.02, "mean_accepted_length": tau, "accuracy_difference": difference, "n": 10,
        "budget": 0.03,
    }  # fmt: skip


def fake_report(folder) -> None:
    """What a finished copy leaves behind, as far as the study reads it."""
    summary = {
        "headline_budget": 0.03,
        "heads": {"logistic": {"ap": 0.9}},
        "methods": {"exact": {**method(3.0), "knob": None}, "fly": method(4.0), "autojudge": method(6.0)},
    }
    verdict = {"0.02": {"fixed": None}, "0.03": {"fixed": {"window": 2}, "refusal": None, "n": 800}}
    for path, value in {
        "reports/summary.json": summary,
        "models/pair.json": {"target": {"accuracy": 0.9}, "draft": {"accuracy": 0.5}},
        "reports/calibration/free/fly.json": {"budgets": verdict},
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
        if target == "report":
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
    assert point["methods"]["fly"]["fixed"] == {"window": 2}
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
    monkeypatch.setattr(study, "SIZES", {**study.SIZES, "benchmark": {"prompts": 1}})
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
        plain.world, plain.pair_training.target, plain.pair_training.draft
    )  # fmt: skip
    assert changed == (name != "similar")


def test_unknown_points_are_refused_with_the_nearest_name(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["study", "--points", "skew0"])
    with pytest.raises(UserError, match="Did you mean 'skew-0'"):
        study.main()


def test_the_figure_shows_published_and_new_points(monkeypatch):
    monkeypatch.chdir(study.ROOT)
    new = {"point": "skew-0", "seed": 2, "budget": 0.03, "methods": {"exact": method(3.0), "autojudge": method(6.0)}}
    assert when_learning_figure.lead(new) == pytest.approx(2)
    points = [*when_learning_figure.published(), new]
    upper, lower = when_learning_figure.draw(points).axes
    assert [text.get_text() for text in lower.get_xticklabels()][-1] == "skew-0\nseed 2"
    assert len(lower.patches) == len(points)
    assert {"autojudge", "fly", "exact"} <= {text.get_text() for text in upper.get_legend().get_texts()}


def test_the_page_shows_the_published_figures(monkeypatch):
    monkeypatch.chdir(study.ROOT)
    points = when_learning_figure.published()
    page = (study.ROOT / "docs" / "when-learning-pays.md").read_text()
    shown = page.split("<!-- published: begin -->\n")[1].split("<!-- published: end -->")[0].splitlines()
    wanted = [
        f"| {name} | {' | '.join(cell(point, name) for point in points)} |" for name in when_learning_figure.METHODS
    ]
    leads = " | ".join(f"{when_learning_figure.lead(point):.2f}" for point in points)
    assert shown[2:] == [*wanted, f"| gate / best other | {leads} |"]
    assert all(f"`{name}`" in page for name in study.POINTS)


def cell(point: dict, name: str) -> str:
    if name not in point["methods"]:
        return "–"
    row = point["methods"][name]
    bound = "not certified" if row["certified_bound"] is None else f"{100 * row['certified_bound']:.1f}"
    return f"{row['mean_accepted_length']:.2f} ({bound})"
