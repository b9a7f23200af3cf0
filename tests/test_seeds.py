"""`make seeds`: what it records, and two tiny seeds from an empty folder to one file."""

import subprocess
import sys
from pathlib import Path

import pytest

from gistgate.certificates.ledger import Ledger
from gistgate.certificates.looks import PUBLISHED, Looks
from gistgate.errors import UserError
from gistgate.files import read_json, write_json, write_text
from pipeline import seed, seeds
from pipeline.common.code import code_fingerprint
from pipeline.common.yaml_file import read_yaml
from pipeline.params import parse_params
from pipeline.report import headline
from pipeline.report.gathered import own_draw
from pipeline.report.markers import begin, end
from pipeline.report.publish import PART
from pipeline.report.tables import of_seeds
from pipeline.smoke import TINY, dvc, merged

ROOT = Path(__file__).parents[1]


def summary(gate: float, ensemble: float, speed: float) -> dict:
    def method(rule: str, tau: float, time: float) -> dict:
        speeds = {"vs_plain": {"mean": time}}
        row = {"rule": rule, "mean_accepted_length": tau, "speed": speeds, "certified_bound": 0.02}
        return {**row, "confidence": 0.95, "certificates": {"0.03": {"bound": 0.02, "n": 1000}}}

    methods = {
        "gate": method("autojudge", gate, speed),
        "ensemble": method("ensemble", ensemble, 1.0),
        "fly": method("fly", 2.0, 1.25),
        "exact": method("exact", 3.0, 1.1),
    }
    return {"methods": methods, "headline_budget": 0.03, "seed": 1}


def test_the_lead_is_over_the_best_of_all_rules_without_training_in_length_and_in_time():
    found = seed.compared(summary(6.0, 4.0, 1.5))["lead"]
    assert (found["tau"]["free"], found["tau"]["ratio"]) == ("ensemble", 1.5)
    assert (found["time"]["free"], found["time"]["ratio"]) == ("fly", 1.2)


def test_a_refused_method_does_not_lead_with_the_figures_of_strict_decoding():
    content = summary(6.0, 4.0, 1.5)
    content["methods"]["ensemble"]["certified_bound"] = content["methods"]["fly"]["certified_bound"] = None
    found = seed.compared(content)["lead"]
    assert (found["tau"]["free"], found["time"]["free"]) == ("exact", "exact")


def test_a_weak_seed_is_named_and_no_part_of_the_median(tmp_path: Path):
    one, other = seed.compared(summary(6.0, 4.0, 1.5)), seed.compared(summary(8.0, 4.0, 1.0))
    seeds.gather({1: one, 2: {"excluded": "its target answers 10.0%."}, 3: other}, tmp_path / "seeds.json")
    found = read_json(tmp_path / "seeds.json")
    assert found["lead"]["tau"] == {"median": 1.75, "low": 1.5, "high": 2.0}
    assert found["free"] == ["ensemble", "exact", "fly"]
    text, head = of_seeds(found), headline.headline(tmp_path)
    assert "Over 2 seeds" in text and "1.75 (1.50 to 2.00)" in text
    assert "Seed 2 is excluded: its target answers 10.0%." in text and "Seed 2 is excluded" in head
    assert "at most 3.0 points of accuracy at 95 % confidence" in head and "7.00 (6.00 to 8.00) tokens" in head
    assert "writes 3.00 (3.00 to 3.00), and" in head and "length is 1.75 (1.50 to 2.00) times" in head


def test_without_seeds_the_headline_is_that_of_the_published_run(tmp_path: Path):
    write_json(tmp_path / "summary.json", summary(6.0, 4.0, 1.5))
    text = headline.headline(tmp_path)
    assert "writes 6.00 tokens" in text and "length is 1.50 times" in text and "its speed 1.20 times" in text
    assert "`fly`" in text and "`ensemble`, writes 4.00" in text and "not certified" not in text
    refused = summary(6.0, 4.0, 1.5)
    refused["methods"]["gate"]["certified_bound"] = None
    write_json(tmp_path / "summary.json", refused)
    assert "`gate` is not certified, so that these are the figures of strict decoding." in headline.headline(tmp_path)


def test_a_seed_joins_those_of_the_same_parameters_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, one = tmp_path / "seeds.json", seed.compared(summary(6.0, 4.0, 1.5))
    for number in (1, 2, 6):
        seeds.record(number, one, file)
    found = read_json(file)
    assert list(found["seeds"]) == ["1", "2", "6"]
    assert found["code"]["fingerprint"] == code_fingerprint(*sorted(seeds.MODULES)) and found["code"]["commit"]
    monkeypatch.setattr(seeds, "mark_of", lambda name: f"other code, seed {name}")
    seeds.record(7, one, file)
    assert list(read_json(file)["seeds"]) == ["7"]


def test_finished_seeds_stay_and_their_looks_are_published_when_a_later_one_fails(tmp_path: Path, monkeypatch):
    parts = [f"{begin(name)}\n{end(name)}\n" for name in (PART, headline.PART)]
    (tmp_path / "README.md").write_text("".join(parts))
    write_text(tmp_path / seeds.RESULTS / "summary.json", (ROOT / seeds.RESULTS / "summary.json").read_text())

    def run(number: int, place: Path) -> dict:
        if number == 3:
            raise UserError("`dvc repro` failed.")
        looks = Looks("embedded: fly", [[number]], 0.05)
        look = looks.take(looks.look([], 0.05), place / "looks.json", place / "published.json")
        write_json(place / "reports/calibration/free/fly.json", {"budgets": {}, "look": look})
        return seed.compared(summary(6.0, 4.0, 1.5))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seeds, "run_seed", run)
    monkeypatch.setattr(seeds, "origin", lambda modules: {"code": {"fingerprint": "f", "commit": "abc"}})
    with pytest.raises(UserError, match="failed"):
        seeds.main([1, 2, 3, 4])
    assert list(read_json(seeds.FILE)["seeds"]) == ["1", "2"]
    assert [look.published for look in Ledger.read(PUBLISHED).looks] == [seeds.FILE.as_posix()] * 2
    assert "over 2 seeds" in (tmp_path / "README.md").read_text()


def test_seeds_have_calibration_prompts_of_their_own_where_problems_have_no_end(monkeypatch: pytest.MonkeyPatch):
    params = parse_params(merged(read_yaml(ROOT / "params.yaml"), seed.changes_of(6)))
    assert (params.seed, params.prompts.draw) == (6, own_draw(seed.PLACE)) and set(seed.RIVALS) <= set(params.methods)
    monkeypatch.setattr(seed, "of_the_world", lambda _params: False)
    assert "prompts" not in seed.changes_of(6)


@pytest.mark.slow
def test_a_copy_whose_dvc_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "dvc.yaml").write_text("stages:\n  one:\n    cmd: echo one > one.txt\n    outs: [one.txt]\n")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "dvc.lock").write_text("schema: '2")
    (tmp_path / ".dvc/tmp/rwlock").write_text("")
    dvc(tmp_path, "repro")
    assert (tmp_path / "one.txt").read_text() == "one\n"


def test_a_weak_target_excludes_a_seed_and_any_other_failure_ends_the_run(tmp_path: Path, monkeypatch):
    def fail(place: Path, *_arguments: str) -> str:
        write_json(place / "models/pair.json", {"target": {"accuracy": accuracy}})
        raise UserError("`dvc repro` failed.")

    def copy(place: Path, changes, _modules) -> None:
        assert changes["seed"] == 4
        write_text(place / "params.yaml", "pair_training:\n  min_target_accuracy: 0.9\n")

    monkeypatch.setattr(seed, "dvc", fail)
    monkeypatch.setattr(seed, "copy", copy)
    accuracy = 0.5
    assert "answers 50.0% of the problems" in seed.run_seed(4, tmp_path)["excluded"]
    accuracy = 0.95
    with pytest.raises(UserError, match="failed"):
        seed.run_seed(4, tmp_path)


@pytest.mark.long
def test_two_tiny_seeds_run_from_nothing_to_one_file(tmp_path: Path):
    one = seed.run_seed(1, tmp_path / "1", TINY)
    weak = merged(TINY, {"pair_training": {"min_target_accuracy": 0.999}})
    two = seed.run_seed(2, tmp_path / "2", weak)
    seeds.gather({1: one, 2: two}, tmp_path / "seeds.json")
    found = read_json(tmp_path / "seeds.json")["seeds"]
    assert {"autojudge", *seed.RIVALS} <= set(found["1"]["methods"])
    assert "min_target_accuracy is 99.9%" in found["2"]["excluded"]
