"""Find for every way of judging segments the loosest value whose loss is certified at the headline budget.

    python -m pipeline.studies.segments.calibrate

Reads data/prompts, data/reference, models/heads and models/segments, writes reports/segments/calibration. Development
prompts choose two values at most; these are decoded on the calibration prompts from strict to loose until one fails.
Points that nobody certifies are measured on the first development prompts. Decoded values wait in the scratch folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scipy.stats import norm

from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.looks import level
from gistgate.certificates.loss_curve import error_apart
from gistgate.certificates.outcomes import Decoded, Outcomes
from gistgate.files import read_json, write_json
from gistgate.identity import gate_hash
from gistgate.optional.segments.files import load_probes
from gistgate.request.statistics import Statistics
from pipeline.certification.looks import Study, looks_of
from pipeline.certification.outcomes import Setup
from pipeline.common.entry import run
from pipeline.common.gates import load_gate
from pipeline.common.pool import side_by_side
from pipeline.common.resume import fingerprint, sources
from pipeline.params import Params, read_params
from pipeline.studies.segments.methods import METHODS, Method, OpinionParts, methods_of
from pipeline.studies.segments.params import local_models, read_segment_params
from pipeline.studies.segments.train import FOLDER

REPORTS = Path("reports/segments/calibration")
MODULE = "pipeline.studies.segments.calibrate"
CHOOSING = ("pipeline.studies.segments.collect", "pipeline.studies.segments.train", MODULE)
"""Modules that lead to the tested values."""
SETTINGS = 2
"""Values per method that development prompts may send to certification."""


def main() -> None:
    params, methods = read_params(), methods_of(read_segment_params())
    # Those that take their value from another method wait for it.
    for group in ([name for name in methods if not methods[name].like], [n for n in methods if methods[n].like]):
        side_by_side(calibrator, params, group, params.decoding.workers, "calibrate", "method")


def calibrator(params: Params) -> Callable[[str], None]:
    """Calibrates one method after another on the same pair and prompts."""
    segments = Segments(params)
    return lambda name: write_json(REPORTS / f"{name}.json", calibrate(segments, name))


class Segments:
    """Pair, task, prompts, references and probes, shared by all methods."""

    def __init__(self, params: Params) -> None:
        self.params, self.setup, self.own = params, Setup(params), read_segment_params()
        self.pair = pair = self.setup.pair
        self.gate = gate = load_gate(self.own.head, pair)
        self.parts = OpinionParts(pair, load_probes(FOLDER, pair.target, pair.draft_model), gate, self.own)
        self.depends = fingerprint(
            FOLDER, gate_hash(gate), self.own.risk, self.own.reward_model, *local_models(self.own.reward_model),
            *pair.files, self.setup.dependencies, *sources(MODULE),
        )  # fmt: skip

    def decoded(self, name: str, value: float, split: str, first: int | None = None) -> Decoded:
        """The `first` prompts of a split, or all, at one value of a method."""
        setup = self.setup
        loose = setup.kept(name, lambda asked: METHODS[name].decoder(self.parts, asked["value"]), self.depends, name)
        return Outcomes(setup.prompts, setup.scorer, setup.strict, loose).decoded(split, {"value": value}, 0, first)

    def look(self, name: str, values: Sequence[float], budget: float, spent: float) -> dict[str, Any]:
        """Record that the calibration prompts are about to be judged at these values of a method.

        Raises:
            UserError: they were judged before with another choice.
        """
        looks = looks_of(self.setup, name, Study("segments", asdict(self.own), CHOOSING))
        return looks.take(looks.look([name, list(values), budget, gate_hash(self.gate), fingerprint(FOLDER)], spent))


def calibrate(segments: Segments, name: str) -> dict[str, Any]:
    """One method: what development saw, what was tested, and what is certified."""
    method, budget = METHODS[name], segments.params.headline_budget
    if not method.certified:
        value = value_of(*method.like) if method.like else method.grid[0]
        return {
            "certified": None,
            "development": [point(value, segments.decoded(name, value, "development", method.prompts))],
        }
    seen = develop(segments, name, method, budget) if len(method.grid) > 1 else []
    values = promising(seen, segments.params, budget) if seen else list(method.grid)
    confidence = level(segments.params.calibrate.confidence, segments.params.calibrate.looks)
    look = segments.look(name, values, budget, 1 - confidence)
    chunks = ([segments.decoded(name, value, "calibration")] for value in values)
    verdicts = fixed_sequence(chunks, [budget], confidence)
    tested = [
        {**point(value, one.decoded), "bound": asdict(one.bounds[0])}
        for value, one in zip(values, verdicts.tested, strict=False)
    ]
    passed = verdicts.passed(budget)
    return {
        "certified": None if passed is None else values[passed],
        "refusal": verdicts.refusal(budget),
        "budget": budget,
        "development": seen,
        "calibration": tested,
        "look": look,
    }


def operating(report: dict[str, Any]) -> dict[str, Any]:
    """Where a method is compared: its certified point, else the first that was tested, else the one there is."""
    points: list[dict[str, Any]] = report.get("calibration") or report["development"]
    return next((one for one in points if one["value"] == report["certified"]), points[0])


def value_of(name: str, entry: str) -> float:
    """An entry of the point where another method is compared."""
    value: float = operating(read_json(REPORTS / f"{name}.json"))[entry]
    return value


def develop(segments: Segments, name: str, method: Method, budget: float) -> list[dict[str, Any]]:
    """The grid on development prompts, until the loss is twice the budget."""
    seen = []
    for value in method.grid:
        seen.append(point(value, segments.decoded(name, value, "development")))
        if seen[-1]["loss"] > 2 * budget:
            break
    return seen


def promising(seen: Sequence[dict[str, Any]], params: Params, budget: float) -> list[float]:
    """The values to test, strict to loose: the loosest that should pass, and the one before it.

    A value should pass where its loss leaves room below the budget for the bound, in standard errors of a calibration
    split, and for the reserve, in those of the two splits' difference.
    """
    z, reserve, n = norm.ppf(params.calibrate.confidence), params.calibrate.reserve, params.prompts.calibration

    def room(one: dict[str, Any]) -> float:
        return float(z * one["deviation"] / n**0.5 + reserve * error_apart(one["deviation"] ** 2, n, one["n"]))

    fitting = [one["value"] for one in seen if one["loss"] + room(one) <= budget]
    return (fitting or [seen[0]["value"]])[-SETTINGS:]


def point(value: float, decoded: Decoded) -> dict[str, Any]:
    """What a value costs and saves on the prompts that were decoded."""
    d, counted = decoded.differences, decoded.counted
    return {
        "value": value,
        "n": len(d),
        "loss": float(d.mean()),
        "deviation": float(d.std()),
        "tau": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
        **decoded.lengths,
        "draft_forwards_per_token": counted.draft_forwards / max(1, counted.tokens),
        **segments_of(counted),
    }


def segments_of(counted: Statistics) -> dict[str, Any]:
    """Segments per hundred tokens, the shares that the opinion passed and that were kept, and what opinions noted."""
    extra, segments = counted.extra, counted.extra.get("segments", 0.0)
    noted = {name: count for name, count in extra.items() if not name.startswith("segments")}
    return {
        "segments_per_100": 100 * segments / max(1, counted.tokens),
        "passed": extra.get("segments_passed", 0.0) / max(1.0, segments),
        "kept": extra.get("segments_kept", 0.0) / max(1.0, segments),
        **({"noted": noted} if noted else {}),
    }


if __name__ == "__main__":
    run(main)
