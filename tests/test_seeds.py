"""`make seeds`: what it gathers, and two tiny seeds from an empty folder to one file."""

from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.files import read_json, write_json, write_text
from pipeline import seeds
from pipeline.report.tables import seeds as told
from pipeline.smoke import TINY, merged


def summary(gate: float, ensemble: float, speed: float) -> dict:
    def method(rule: str, tau: float, time: float) -> dict:
        speeds = {"vs_plain": {"mean": time}}
        return {"rule": rule, "mean_accepted_length": tau, "speed": speeds, "certified_bound": 0.02}

    return {
        "methods": {
            "gate": method("autojudge", gate, speed),
            "ensemble": method("ensemble", ensemble, 1.0),
            "fly": method("fly", 2.0, 1.25),
        }
    }


def test_the_lead_is_over_the_best_of_all_rules_without_training_in_length_and_in_time():
    found = seeds.compared(summary(6.0, 4.0, 1.5))["lead"]
    assert (found["tau"]["free"], found["tau"]["ratio"]) == ("ensemble", 1.5)
    assert (found["time"]["free"], found["time"]["ratio"]) == ("fly", 1.2)


def test_a_weak_seed_is_named_and_no_part_of_the_median(tmp_path: Path):
    one, other = seeds.compared(summary(6.0, 4.0, 1.5)), seeds.compared(summary(8.0, 4.0, 1.0))
    seeds.gather({1: one, 2: {"excluded": "its target answers 10.0%."}, 3: other}, tmp_path / "seeds.json")
    found = read_json(tmp_path / "seeds.json")
    assert found["lead"]["tau"] == {"median": 1.75, "low": 1.5, "high": 2.0}
    assert found["free"] == ["ensemble", "fly"]
    text = told(found)
    assert "Over 2 seeds" in text and "1.75 (1.50 to 2.00)" in text
    assert "Seed 2 is excluded: its target answers 10.0%." in text


def test_a_weak_target_excludes_a_seed_and_any_other_failure_ends_the_run(tmp_path: Path, monkeypatch):
    def fail(place: Path, *_arguments: str) -> str:
        write_json(place / "models/pair.json", {"target": {"accuracy": accuracy}})
        raise UserError("`dvc repro` failed.")

    def copy(place: Path, changes) -> None:
        write_text(place / "params.yaml", "pair_training:\n  min_target_accuracy: 0.9\n")

    monkeypatch.setattr(seeds, "dvc", fail)
    monkeypatch.setattr(seeds, "copy_project", copy)
    accuracy = 0.5
    assert "answers 50.0% of the problems" in seeds.run_seed(4, folder=tmp_path)["excluded"]
    accuracy = 0.95
    with pytest.raises(UserError, match="failed"):
        seeds.run_seed(4, folder=tmp_path)


@pytest.mark.long
def test_two_tiny_seeds_run_from_nothing_to_one_file(tmp_path: Path):
    one = seeds.run_seed(1, TINY, tmp_path)
    weak = merged(TINY, {"pair_training": {"min_target_accuracy": 0.999}})
    two = seeds.run_seed(2, weak, tmp_path)
    seeds.gather({1: one, 2: two}, tmp_path / "seeds.json")
    found = read_json(tmp_path / "seeds.json")["seeds"]
    assert {"autojudge", *seeds.RIVALS} <= set(found["1"]["methods"])
    assert "min_target_accuracy is 99.9%" in found["2"]["excluded"]
