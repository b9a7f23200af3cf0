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
        "judge": {"rule": "prob-ratio", "knob": "r", "grid": [0.5, 0.2]},
    },
)
CORRECT = {
    "plain": [1, 1, 1, 0],
    "exact": [1, 1, 1, 0],
    "prob": [1, 1, 1, 0],
    "judge": [1, 0, 1, 0],
}
METHODS = {"exact": 3.0, "prob": 3.0, "judge": 2.0}  # seconds
BASELINES = {
    "plain": 4.0,
    "strict": 3.0,
    "transformers_generate": 5.0,
    "transformers_assisted": 6.0,
    "transformers_lookup": 5.0,
}
COUNTS = {"n": 100, "losses": 3, "gains": 1}
SETTING = {
    **COUNTS,
    "fixed": {},
    "loss": 0.015,
    "accuracy": 0.9,
    "mean_accepted_length": 5.0,
    "loose_per_100": 2.0,
}
LENGTHS = {"capped": 0.02, "strict_capped": 0.01, "mean_tokens": 41.5, "strict_mean_tokens": 40.0}
CERTIFIED = {"certified": True, "knob": 0.2, "bound": 0.04}
REFUSED = {"certified": False, "knob": None, "bound": 0.2}


def evaluation(name):
    is_judge = name == "judge"
    return {
        "method": name,
        "block": 8,
        "knob": 0.2 if is_judge else None,
        "cut": 2 if is_judge else 0,
        "n": 4,
        "accuracy": sum(CORRECT[name]) / 4,
        "mean_accepted_length": 6.0,
        "loose_per_100": 7.0,
        "statistics": {"forwards": 10, "histogram": {"0": 1, "8": 3}},
    }


def calibration(name, knob, verdict):
    verdict = {**verdict, **COUNTS, "confidence": 0.95, **LENGTHS}
    settings = [{"knob": knob, **SETTING}]
    scope = {"target": {"dtype": "float32"}}
    return {
        "method": name,
        "rule": PARAMS.methods[name].rule,
        "proof": {"scope": scope, "source": "made up"},
        "budgets": {"0.1": verdict},
        "settings": settings,
        "development": settings,
    }


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
    for name, scores in CORRECT.items():
        samples = [{"id": f"test-{n}", "correct": score} for n, score in enumerate(scores)]
        write_json(f"reports/evaluation/{name}/summary.json", evaluation(name))
        write_json_lines(f"reports/evaluation/{name}/samples.jsonl", samples)
    write_json(calibration_file("prob"), calibration("prob", 0.1, REFUSED))
    write_json(calibration_file("judge"), calibration("judge", 0.2, CERTIFIED))
    benchmark = {
        "methods": {name: timing(seconds) for name, seconds in METHODS.items()},
        "baselines": {name: timing(seconds) for name, seconds in BASELINES.items()},
        "chosen_on": 16,
        "engine": "eager",
        "failed": {"transformers_static": "RuntimeError: no"},
    }
    benchmark["baselines"]["transformers_assisted"]["block"] = 0
    write_json("reports/benchmark.json", benchmark)
    metrics = {"auc": 0.9, "ap": 0.5, "brier": 0.1, "ece": None, "n": 3}
    write_json("models/heads/logistic/metrics.json", metrics)
    bins = [
        {"predicted": 0.2, "observed": 0.3, "n": 2},
        {"predicted": 0.8, "observed": 0.9, "n": 2},
    ]
    write_json("models/heads/logistic/curves.json", {"reliability": bins})
    return tmp_path
