"""The results of a made-up run of three methods, as the stages in front of `report` leave them."""

import pytest

from gistgate.core.files import write_json, write_json_lines
from pipeline.paths import calibration_file
from tests.pipeline.parameters import parameters

PARAMS = parameters(
    headline_budget=0.1,
    train={"heads": ["logistic"]},
    methods={
        "exact": {"rule": "exact"},
        "prob": {"rule": "prob", "knob": "r", "grid": [0.5, 0.1]},
        "judge": {"rule": "prob-ratio", "knob": "r", "grid": [0.05, 0.2]},
    },
)
CORRECT = {
    "plain": [1, 1, 1, 0],
    "exact": [1, 1, 1, 0],
    "prob": [1, 1, 1, 0],
    "judge": [1, 0, 1, 0],
}
SECONDS = {
    f"transformers_{name}": seconds
    for name, seconds in (("generate", 5.0), ("assisted", 6.0), ("lookup", 5.0))
}
COUNTS = {"n": 100, "losses": 3, "gains": 1}
SETTING = {
    **COUNTS,
    "loss": 0.015,
    "accuracy": 0.9,
    "mean_accepted_length": 5.0,
    "loose_per_100": 2.0,
}
LENGTHS = {"capped": 0.02, "strict_capped": 0.01, "mean_tokens": 41.5, "strict_mean_tokens": 40.0}


def evaluation(name):
    is_judge, accuracy = name == "judge", sum(CORRECT[name]) / 4
    about = {
        "method": name,
        "block": 8,
        "knob": 0.2 if is_judge else None,
        "cut": 2 if is_judge else 0,
    }
    statistics = {"forwards": 10, "histogram": {"0": 1, "8": 3}}
    numbers = {"n": 4, "accuracy": accuracy, "mean_accepted_length": 6.0, "loose_per_100": 7.0}
    samples = [{"id": f"test-{i}", "correct": c} for i, c in enumerate(CORRECT[name])]
    return {**about, **numbers, "statistics": statistics}, samples


def calibration(name, knob, certified):
    verdict = {
        "certified": certified,
        "knob": knob if certified else None,
        "bound": 0.04 if certified else 0.2,
    }
    verdict |= {**COUNTS, "confidence": 0.95, **LENGTHS}
    runs = {
        split: [{"knob": knob, "fixed": {}, **SETTING}] for split in ("settings", "development")
    }
    return {"method": name, "rule": PARAMS.methods[name].rule, "budgets": {"0.1": verdict}, **runs}


def timing(seconds):
    return {
        "block": 8,
        "seconds": [[seconds / 4, seconds / 4]] * 2,
        "tokens": [5, 5],
        "target_forwards": [2, 2],
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory in which every stage in front of `report` has run."""
    monkeypatch.chdir(tmp_path)
    for name in CORRECT:
        summary, samples = evaluation(name)
        write_json(f"reports/evaluation/{name}/summary.json", summary)
        write_json_lines(f"reports/evaluation/{name}/samples.jsonl", samples)
    write_json(calibration_file("prob"), calibration("prob", 0.1, False))
    write_json(calibration_file("judge"), calibration("judge", 0.2, True))
    methods = {"exact": timing(3.0), "prob": timing(3.0), "judge": timing(2.0)}
    baselines = {
        name: timing(seconds) for name, seconds in {"plain": 4.0, "strict": 3.0, **SECONDS}.items()
    }
    baselines["transformers_assisted"]["block"] = 0
    about = {"chosen_on": 16, "failed": {"transformers_static": "RuntimeError: no"}}
    write_json("reports/benchmark.json", {"methods": methods, "baselines": baselines, **about})
    write_json(
        "models/heads/logistic/metrics.json",
        {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None, "n": 3},
    )
    bins = [
        {"predicted": 0.2, "observed": 0.3, "n": 2},
        {"predicted": 0.8, "observed": 0.9, "n": 2},
    ]
    write_json("models/heads/logistic/curves.json", {"reliability": bins})
    return tmp_path
