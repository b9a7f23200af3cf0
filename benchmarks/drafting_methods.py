"""What benchmarks.drafting compares, and why it leaves methods and steps out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ladder import STRICT, TEXTS, Ladder
from benchmarks.workload import Workload
from gistgate.drafters.stopping import Stopping
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.operating_point import OWN_REPORTS, REPORTS, Operating, calibration_file
from pipeline.pairs.source import MODEL


@dataclass(frozen=True)
class Comparison:
    """Methods and their steps, on requests of one form."""

    ladder: Ladder
    points: Mapping[str, Operating]
    steps: Mapping[str, Sequence[str]]
    """The steps that each method takes, in their order."""
    request: dict[str, Any]
    """Arguments of `Decoder.generate`."""
    folder: Path
    """Where measurements are kept, for resuming."""
    batch: int = 1
    """Rows decoded together."""


def points_of(
    workload: Workload, names: Sequence[str], strict_block: int = 0
) -> tuple[dict[str, Operating], dict[str, str]]:
    """The methods that are compared, and the reason of each that is left out.

    Strict decoding at K = `strict_block` (0: the run's own) and every certified method that drafts with the model and
    keeps tokens loosely; `names` chooses among them.

    Raises:
        UserError: there is no method of a name, or every named one is left out.
    """
    known = {STRICT: strict_at(workload, strict_block)}
    known |= {name: point for name, point in workload.own.items() if why_absent(workload, name) is None}
    methods = [STRICT, *workload.params.methods]
    if unknown := [name for name in names if name not in methods]:
        raise UserError(f"There is no method '{unknown[0]}'. Known: {', '.join(methods)}.")
    asked = names or methods
    absent = {name: why for name in asked if name not in known and (why := why_absent(workload, name))}
    points = {name: known[name] for name in asked if name in known}
    if not points:
        raise UserError(" ".join(f"'{name}' is left out: {why}." for name, why in absent.items()))
    return points, absent


def strict_at(workload: Workload, block: int) -> Operating:
    """Strict decoding with K = `block`; 0 is the K of the run."""
    return Operating(STRICT, "exact", MODEL, block or workload.params.decoding.strict_block)


def why_absent(workload: Workload, name: str) -> str | None:
    """Why a method of the run is not compared, as the end of a sentence about it; None where it is."""
    params, point = workload.params, workload.own.get(name)
    reports = [path for kind in (OWN_REPORTS, REPORTS) if (path := calibration_file(params, name, kind)).exists()]
    if point is not None and point.drafter != MODEL:
        return f"it drafts with '{point.drafter}' and not with the draft model"
    if point is not None and not any(keeps_loosely(point, read_json(path)) for path in reports):
        return f"at its certified setting it kept no token loosely, so that it decodes as '{STRICT}' does"
    if point is not None:
        return None
    method = params.method(name)
    if method.knob is None:
        return f"it decodes as '{STRICT}' does"
    if reports:
        return f"nothing is certified for it at the budget {params.headline_budget:g}"
    return "it was not calibrated here; run `make repro`, or `make table` for the methods of the large table"


def keeps_loosely(point: Operating, report: Mapping[str, Any]) -> bool:
    """Whether a method kept any calibration token loosely at this point."""
    tested = [one for one in report["settings"] if one["knob"] == point.knob]
    return any(one["loose_per_100"] > 0 and one["fixed"].items() <= point.settings.items() for one in tested)


def steps_of(
    ladder: Ladder, points: Mapping[str, Operating], taken: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The steps of every method, and the reason of each step that its rule cannot take.

    All decoders are built once, so that nothing fails behind hours of measurement.

    Raises:
        UserError: a method cannot run with one of the draft models.
    """
    steps: dict[str, list[str]] = {name: [] for name in points}
    absent: dict[str, str] = {}
    for name, point in points.items():
        for step in taken:
            try:
                ladder.decoder(point, step, stand_in(point.block))
            except UserError as error:
                if step != TEXTS:
                    raise
                absent[f"{name}: {step}"] = str(error)
            else:
                steps[name].append(step)
    return steps, absent


def stand_in(block: int) -> Stopping:
    """A policy in place of one that is not measured yet."""
    return Stopping(0.0, measured={"cost": 1.0, "verify": 1.0, "block": block})
