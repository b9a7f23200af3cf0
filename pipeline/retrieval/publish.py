"""Copy the last run's results into Git and renew the table of the page about retrieval.

    python -m pipeline.retrieval.publish

Reads reports/retrieval, writes docs/results/retrieval/summary.json and the part of docs/retrieval.md between its
markers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.stage import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.files import read_json, read_text, write_json, write_text
from pipeline.operating import calibration_file
from pipeline.params import Params
from pipeline.publish import split, with_table
from pipeline.retrieval.params import REPORTS, retrieval_params
from pipeline.retrieval.tables import REFERENCES, content

RESULTS, PAGE = Path("docs/results/retrieval"), Path("docs/retrieval.md")


def main() -> None:
    split(read_text(PAGE))
    write_json(RESULTS / "summary.json", summarise(retrieval_params()))
    write_text(PAGE, with_table(read_text(PAGE), content(read_json(RESULTS / "summary.json"))))


def summarise(params: Params, reports: Path = REPORTS) -> dict[str, Any]:
    """Everything that the page shows, in one mapping; methods in the order of retrieval/params.yaml."""
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
            "certified": evaluated["certified"],
            "settings": evaluated["settings"],
            "bound": found["bound"],
            "refusal": found["refusal"],
        },
        "difference": evaluated["accuracy_difference"],
    }


if __name__ == "__main__":
    run(main)
