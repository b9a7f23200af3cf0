"""The study over the world's dials, with stages that write made-up reports."""

import json
from pathlib import Path

import pytest

from gistgate.certificates.ledger import Ledger, Look
from gistgate.certificates.looks import PUBLISHED, Looks
from gistgate.errors import UserError
from gistgate.files import fingerprint
from pipeline.common.yaml_file import read_yaml
from pipeline.params import Params, parse_params, read_params
from pipeline.report import gathered
from pipeline.seed import PLACE
from pipeline.studies.learning_pays import dials, point, study
from pipeline.studies.learning_pays import figure as when_learning_figure


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
    verdict = {**kept, "fixed": fixed if kept["certified"] else None, "n": 1000, "losses": 12, "gains": 2}
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


def with_looks(folder: Path) -> None:
    """Every calibration says which prompts it looked at; each copy has prompts of its own."""
    for path in (folder / "reports/calibration").rglob("*.json"):
        looks = Looks(f"embedded: {path.stem}", [[ord(letter) for letter in folder.name]], 0.05)
        look = looks.take(looks.look([path.stem], 0.05), folder / "looks.json", folder / "published.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "look": look}))


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """Which stages of which copies ran."""
    ran = []

    def dvc(folder, _verb, target):
        ran.append((folder.name, target))
        if folder.name.startswith("skew-1"):
            raise UserError("The target solves no training prompt.")
        if target == point.TARGETS[-1]:
            fake_report(folder)
            with_looks(folder)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "copy", lambda place, *_: place.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(study, "origin", lambda modules: {"code": {"modules": list(modules), "commit": "abc"}})
    monkeypatch.setattr(point, "dvc", dvc)
    return ran


def test_finished_points_are_kept_and_skipped_and_a_failure_stops_no_other(stages):
    assert study.study(["skew-1", "skew-0"], [1], lambda: True) == ["skew-1/seed-1"]
    assert [target for folder, target in stages if folder == "skew-0-1"] == list(point.TARGETS)
    found = study.recorded()["skew-0/seed-1"]
    assert (found["changes"], found["code"]["commit"]) == ({"world": {"skew": 0.0}}, "abc")
    fly, typical, strict = (found["methods"][name] for name in ("fly", "typical", "exact"))
    assert (fly["knob"], fly["fixed"], fly["mean_accepted_length"], fly["n"]) == (0.3, {"window": 2}, 4.0, 1000)
    assert (fly["certificate"]["losses"], fly["certificate"]["gains"]) == (12, 2)
    assert (typical["certified_bound"], typical["mean_accepted_length"]) == (None, 3.0), "refused: runs strictly"
    assert (strict["certified_bound"], strict["mean_accepted_length"]) == (0.0, 3.0)
    assert when_learning_figure.lead(found) == pytest.approx(7 / 4)
    assert not (study.COPIES / "skew-0-1").exists()
    before = len(stages)
    assert study.study(["skew-0"], [1], lambda: True) == []
    assert len(stages) == before
    study.study(["skew-0"], [2, 3], lambda: True)
    assert set(study.recorded()) == {f"skew-0/seed-{seed}" for seed in (1, 2, 3)}


def test_looks_are_published_before_the_copy_is_removed(stages):
    study.study(["skew-0", "neutral"], [1], lambda: True)
    looks = Ledger.read(PUBLISHED).looks
    assert {look.claim for look in looks} == {f"embedded: {name}" for name in ("exact", "fly", "typical", "autojudge")}
    assert len(looks) == 8 and {look.published for look in looks} == {study.OUTPUT.as_posix()}


def test_a_point_whose_prompts_were_published_with_another_choice_is_not_recorded(stages):
    prompts = Looks("embedded: fly", [[ord(letter) for letter in "skew-0-1"]], 0.05)
    ledger = Ledger()
    ledger.admit(Look("embedded: fly", prompts.look([], 0.05).prompts, "", "other", 0.05), prompts.hashes, 0.05)
    ledger.write(PUBLISHED)
    assert study.study(["skew-0"], [1], lambda: True) == ["skew-0/seed-1"]
    assert study.recorded() == {} and (study.COPIES / "skew-0-1").exists()


def test_a_point_without_time_stays_where_it_is(stages):
    left = iter([True, True, True, False])
    assert study.study(["skew-0", "neutral"], [1], lambda: next(left)) == []
    assert stages == [("skew-0-1", "pair"), ("skew-0-1", "reference")]
    assert study.recorded() == {}
    assert (study.COPIES / "skew-0-1").exists()


OTHER = {
    "size": lambda patch: patch.setattr(dials, "SIZES", {**dials.SIZES, "prompts": {"test": 9}}),
    "params.yaml": lambda patch: patch.setattr(gathered, "read_yaml", lambda path: {**read_yaml(path), "task": "x"}),
    "draw": lambda patch: patch.setattr(gathered, "DRAWS", 1000),
    "code": lambda patch: patch.setattr(gathered, "code_fingerprint", lambda *_: "other"),
}
"""What may change behind a recorded point."""


@pytest.mark.parametrize("change", OTHER)
def test_another_size_parameter_draw_or_code_measures_a_point_again_and_drops_the_others(stages, monkeypatch, change):
    study.study(["neutral", "skew-0"], [1], lambda: True)
    OTHER[change](monkeypatch)
    stages.clear()
    PUBLISHED.unlink()  # the made-up prompts would be the same again
    study.study(["neutral"], [1], lambda: True)
    assert len(stages) == len(point.TARGETS)
    assert set(study.recorded()) == {"neutral/seed-1"}


def test_the_result_names_its_picture(stages, capsys):
    study.main(["neutral"], [1], None)
    study.main(["neutral"], [1], None)  # nothing is left to run; the picture keeps its name
    files = json.loads(study.OUTPUT.read_text())["code"]["files"]
    assert files == {"when-learning-pays.png": fingerprint(study.OUTPUT.with_suffix(".png"))}
    assert set(study.recorded()) == {"neutral/seed-1"} and "skipped" in capsys.readouterr().out


def test_every_point_has_calibration_prompts_of_its_own():
    draws = {dials.changes_of(name, 1)["prompts"]["draw"] for name in study.POINTS}
    assert len(draws) == len(study.POINTS) and min(draws) >= gathered.DRAWS
    assert len(study.POINTS) <= PLACE


@pytest.mark.parametrize("name", study.POINTS)
def test_every_point_is_a_valid_set_of_parameters(name):
    params = parse_params(gathered.merged(read_yaml(gathered.ROOT / "params.yaml"), dials.changes_of(name, 2)))
    assert isinstance(params, Params) and params.seed == 2
    assert set(params.methods) == set(when_learning_figure.METHODS)
    plain = read_params(gathered.ROOT / "params.yaml")
    changed = (params.world, params.pair_training.target, params.pair_training.draft) != (
        plain.world,
        plain.pair_training.target,
        plain.pair_training.draft,
    )
    assert changed == (name != "similar")


def test_unknown_points_are_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="Did you mean 'skew-0'"):
        study.main(["skew0"])


def row(seed, tau, bound=0.02, name="similar"):
    """A recorded point whose gate is certified with this bound, or not."""
    methods = {"exact": method(3.0), "autojudge": {**method(tau), "certified_bound": bound}}
    return {"point": name, "seed": seed, "budget": 0.03, "strict_accuracy": 0.9, "methods": methods}


def test_the_figure_shows_a_group_for_each_point():
    assert when_learning_figure.lead(row(2, 6.0)) == pytest.approx(2)
    groups = when_learning_figure.shown({"skew-0/seed-2": row(2, 6.0, name="skew-0"), "neutral/seed-1": row(1, 3.0)})
    upper, lower = when_learning_figure.draw(groups).axes
    assert [text.get_text() for text in lower.get_xticklabels()] == ["similar", "skew-0\nseed 2"]
    assert len(lower.patches) == len(groups) == 2
    assert {"autojudge", "exact"} == {text.get_text() for text in upper.get_legend().get_texts()}


def test_seeds_of_a_point_are_shown_by_median_and_range():
    every = ((1, 6.0, 0.02), (2, 9.0, None), (3, 7.5, 0.011))
    rows = {f"similar/seed-{seed}": row(seed, tau, bound) for seed, tau, bound in every}
    groups = when_learning_figure.shown({"neutral/seed-1": row(1, 3.0, name="neutral"), **rows})
    assert [when_learning_figure.label(group) for group in groups] == ["neutral", "similar"]
    cells = [one.strip() for one in when_learning_figure.table(groups).splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["similar", "3", "90 [90, 90]", "7.50 [6.00, 9.00] (2.0, none in 1)"]
    assert cells[-1] == "2.50 [2.00, 3.00]"
    _, lower = when_learning_figure.draw(groups).axes
    assert lower.patches[1].get_height() == pytest.approx(1.5)
    assert lower.collections[0].get_segments()[1][:, 1].tolist() == [2.0, 3.0]


def test_the_table_says_which_methods_have_no_certificate():
    rows = {"exact": method(3.0), "fly": {**method(3.0), "certified_bound": None}}
    point = {"point": "x", "seed": 1, "strict_accuracy": 0.5, "methods": {**rows, "autojudge": method(6.0)}}
    line = when_learning_figure.table([[point]]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert (cells[:4], cells[-3:]) == (["x", "1", "50", "6.00 (2.0)"], ["3.00 (none)", "3.00 (2.0)", "2.00"])


def test_the_page_shows_what_was_measured(monkeypatch):
    monkeypatch.chdir(gathered.ROOT)
    page = (gathered.ROOT / "docs" / "when-learning-pays.md").read_text()
    shown = page.split("<!-- points: begin -->\n")[1].split("<!-- points: end -->")[0]
    assert shown == when_learning_figure.table(when_learning_figure.shown(study.recorded()))
    assert all(f"`{name}`" in page for name in study.POINTS)
