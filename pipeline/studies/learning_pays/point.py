"""One point of the study: its stages, and what its copy of the project says afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gistgate.files import read_json
from pipeline.common.code import CERTIFYING
from pipeline.report.results import STRICT
from pipeline.report.summary import CERTIFIED
from pipeline.smoke import dvc

GATE = "autojudge"
TARGETS = ("pair", "reference", "pilot", "heads", "calibrate_free", f"calibrate_learned@{GATE}")
"""Stages that are asked for in turn, with all before them; time is looked at in between."""
MODULES = (*CERTIFYING, "pipeline.studies.learning_pays.point")
"""What makes a point."""


def measure(folder: Path, has_time: Callable[[], bool]) -> dict[str, Any] | None:
    """One point in its copy of the project; None where the time ran out.

    Raises:
        UserError: a stage failed; its own sentence stands above.
    """
    for target in TARGETS:
        if not has_time():
            return None
        dvc(folder.resolve(), "repro", target)
    return collected(folder)


def collected(folder: Path) -> dict[str, Any]:
    """What a finished copy says of its pair and of every method at the headline budget."""
    pair, head = (read_json(folder / path) for path in ("models/pair.json", "models/heads/logistic/metrics.json"))
    reports = {path.stem: read_json(path) for path in sorted((folder / "reports/calibration").rglob("*.json"))}
    strict = reports[STRICT]["settings"][0]
    return {
        "budget": reports[STRICT]["headline_budget"],
        "target_accuracy": pair["target"]["accuracy"],
        "draft_accuracy": pair["draft"]["accuracy"],
        "strict_accuracy": strict["accuracy"],
        "ap": head["ap"],
        "methods": {name: line(report, strict["mean_accepted_length"]) for name, report in reports.items()},
    }


def line(report: dict[str, Any], strict_tau: float) -> dict[str, Any]:
    """One method at its certified setting, on the calibration prompts; without a certificate it runs strictly."""
    budget = report["headline_budget"]
    verdict = next(one for key, one in report["budgets"].items() if float(key) == budget)
    kept = [one for one in report["settings"] if (one["knob"], one["fixed"]) == (verdict["knob"], verdict["fixed"])]
    shown = kept[0] if verdict["certified"] else {"mean_accepted_length": strict_tau, "loss": 0.0, "n": verdict["n"]}
    return {
        "knob": verdict["knob"],
        "fixed": verdict["fixed"],
        "certified_bound": (0.0 if report["knob"] is None else verdict["bound"]) if verdict["certified"] else None,
        "certificate": {key: verdict[key] for key in CERTIFIED if key in verdict},
        "refusal": verdict["refusal"],
        "mean_accepted_length": shown["mean_accepted_length"],
        "loss": shown["loss"],
        "n": shown["n"],
    }
