"""Everything that a page shows of the retrieval stages, in one mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.files import read_json
from pipeline.common.operating_point import calibration_file
from pipeline.params import Params
from pipeline.report.summary import CERTIFIED
from pipeline.studies.retrieval.params import REPORTS
from pipeline.studies.retrieval.tables import REFERENCES


def summarise(params: Params, reports: Path = REPORTS) -> dict[str, Any]:
    """Methods in the order of the study's file, each measured, and certified where it is soft; and the datastore."""
    benchmark, evaluation = read_json(reports / "benchmark.json"), read_json(reports / "evaluation.json")
    plain = benchmark["baselines"]["plain"]
    return {
        "pair": params.pair,
        "headline_budget": params.headline_budget,
        "machine": benchmark["machine"],
        "speed_prompts": len(plain["seconds"]),
        "repeats": len(plain["seconds"][0]),
        "plain_tokens_per_second": benchmark["ratios"]["plain"]["tokens_per_second"],
        "test_prompts": evaluation["n"],
        "methods": [
            {**measured(benchmark, params, name), **certified(evaluation["methods"], params, name, reports)}
            for name in params.methods
            if name in benchmark["methods"]
        ],
        "datastore": read_json(reports / "datastore.json"),
    }


def measured(benchmark: dict[str, Any], params: Params, name: str) -> dict[str, Any]:
    """A method's speed against the references, and its accepted length."""
    ratios, method = benchmark["ratios"][name], params.method(name)
    return {
        "name": name,
        "drafter": method.drafter,
        "rule": method.rule,
        "block": benchmark["methods"][name]["block"],
        "tau": ratios["mean_accepted_length"],
        **{f"vs_{key}": ratios[f"vs_{key}"] for key in REFERENCES if f"vs_{key}" in ratios},
    }


def certified(evaluation: dict[str, Any], params: Params, name: str, reports: Path) -> dict[str, Any]:
    """Where a soft method may run and what it changed on test prompts; empty for a lossless one."""
    if params.method(name).knob is None:
        return {}
    evaluated = evaluation[name]
    budgets = read_json(calibration_file(params, name, reports))["budgets"]
    found = next(entry for key, entry in budgets.items() if float(key) == evaluated["budget"])
    return {
        "certificate": {
            **{key: found[key] for key in CERTIFIED if key in found},
            "certified": evaluated["certified"],
            "settings": evaluated["settings"],
            "refusal": found["refusal"],
        },
        "difference": evaluated["accuracy_difference"],
    }
