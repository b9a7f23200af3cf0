"""The headline gate as a folder that decodes with plain transformers, registered as a model.

    python -m pipeline.stages.export     models/heads/<head> and reports/calibration/learned/<method>.json -> models/export/

The method is the learned one that asks `train.headline_head`. Equal inputs give equal bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.errors import UserError
from gistgate.files import read_json, write_atomic
from gistgate.gates.config import OperatingPoint
from gistgate.gates.gate import Gate
from gistgate.integrations.transformers.flatten import write_code
from pipeline.common.gates import gate_folder
from pipeline.common.operating_point import calibration_file
from pipeline.common.registry import register_gate
from pipeline.common.scope import gate_hash
from pipeline.heads.guard_fit import saved_for
from pipeline.params import Params, read_params
from pipeline.report.card import card, evaluations

EXPORT = Path("models/export")

Report = dict[str, Any]
"""reports/calibration/learned/<method>.json."""


def main() -> None:
    params = read_params()
    name = exported_method(params)
    report = read_json(calibration_file(params, name))
    gate = certified(Gate.load(gate_folder(params.train.headline_head)), report)
    text = card(gate.config, report, evaluations(name))
    write_atomic(EXPORT, lambda part: write_folder(gate, text, part))
    version = register_gate(params, EXPORT, metrics(gate))
    print(f"{EXPORT}: {describe(gate)}" + (f"; registered as version {version}" if version else ""))


def exported_method(params: Params) -> str:
    """The calibrated method that asks the headline head; the first of several.

    Raises:
        UserError: there is none.
    """
    head = params.train.headline_head
    for name, method in params.methods.items():
        if method.head == head and method.knob is not None:
            return name
    raise UserError(
        f"No method of params.yaml asks the head '{head}', so nothing is calibrated for it. Add one under "
        "'methods.learned', or change 'train.headline_head'."
    )


def certified(gate: Gate, report: Report) -> Gate:
    """The gate with operating points and certificate.

    Raises:
        UserError: the calibration is another gate's.
    """
    if report["binding"]["gate"] != gate_hash(gate):
        raise UserError(
            f"The calibration of '{report['method']}' was made with other weights than the gate's. "
            "Run the stage `calibrate_learned` again."
        )
    gate.config = replace(gate.config, operating_points=operating_points(report), certificate=certificate(report))
    return gate


def operating_points(report: Report) -> tuple[OperatingPoint, ...]:
    """What each budget permits, strict to loose; a budget without a certificate has no point."""
    return tuple(
        OperatingPoint(
            budget=float(budget),
            confidence=report["confidence"],
            knob=found["knob"],
            n=found["n"],
            bound=found["bound"],
            block=report["block"],
            certified=True,
            mean_accepted_length=tested(report, found)["mean_accepted_length"],
        )
        for budget, found in sorted(report["budgets"].items(), key=lambda item: float(item[0]))
        if found["certified"]
    )


def tested(report: Report, found: dict[str, Any]) -> dict[str, Any]:
    """The setting on the calibration prompts that a budget's verdict speaks of."""
    place = (found["knob"], found["fixed"])
    return next(setting for setting in report["settings"] if (setting["knob"], setting["fixed"]) == place)


def certificate(report: Report) -> dict[str, Any]:
    """What the operating points hold for, and why some budgets have none."""
    kept = ("method", "rule", "drafter", "block", "confidence", "headline_budget", "binding")
    refused = {budget: found["refusal"] for budget, found in report["budgets"].items() if not found["certified"]}
    return {
        **{name: report[name] for name in kept},
        "fixed": report["settings"][0]["fixed"],  # one variant is chosen before anything is tested
        "refused": refused,
    }


def write_folder(gate: Gate, text: str, folder: Path) -> None:
    """The whole export."""
    gate.save(folder, card=text)
    if (guard := saved_for(gate)) is not None:
        guard.save(folder)
    write_code(folder)


def metrics(gate: Gate) -> dict[str, Any]:
    """What the registered version shows: bound, knob and tau of every certified budget."""
    return {
        f"budget_{point.budget:g}": {"bound": point.bound, "knob": point.knob, "tau": point.mean_accepted_length}
        for point in gate.config.operating_points
    }


def describe(gate: Gate) -> str:
    """A line for the terminal."""
    points = gate.config.operating_points
    return (
        "; ".join(f"{point.budget:.0%} at {point.knob:g}" for point in points) or "nothing certified, decodes strictly"
    )


if __name__ == "__main__":
    run(main)
