"""The headline gate as a folder that decodes with plain transformers, registered as a model.

    python -m pipeline.stages.export     models/heads/<head>, reports/calibration/learned/<method>.json -> models/export

The method is the learned one that asks `train.headline_head`. Equal inputs give equal bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import
from pipeline.common.paths import EXPORT

# isort: split
from gistgate.certificates.certificate import Proof, proof_from
from gistgate.errors import UserError
from gistgate.files import read_json, write_atomic
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash
from gistgate.integrations.transformers.flatten import write_code
from pipeline.common.gates import gate_folder
from pipeline.common.operating_point import calibration_file
from pipeline.common.registry import register_gate
from pipeline.heads.guard_fit import saved_for
from pipeline.params import Params, read_params
from pipeline.report.card import card, evaluations

Report = dict[str, Any]
"""reports/calibration/learned/<method>.json."""


def main() -> None:
    params = read_params()
    name = exported_method(params)
    report = read_json(calibration_file(params, name))
    gate = Gate.load(gate_folder(params.train.headline_head))
    proof = proof_for(gate, report)
    text = card(gate.config, proof, report, evaluations(name))
    write_atomic(EXPORT, lambda part: write_folder(gate, proof, text, part))
    version = register_gate(params, EXPORT, metrics(proof))
    print(f"{EXPORT}: {describe(proof)}" + (f"; registered as version {version}" if version else ""))


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


def proof_for(gate: Gate, report: Report) -> Proof:
    """What the calibration of a method proves for the gate.

    Raises:
        UserError: the calibration is another gate's.
    """
    proof = proof_from(report["proof"])
    if proof.scope["gate"] != gate_hash(gate):
        raise UserError(
            f"The calibration of '{report['method']}' was made with other weights than the gate's. "
            "Run the stage `calibrate_learned` again."
        )
    return proof


def write_folder(gate: Gate, proof: Proof, text: str, folder: Path) -> None:
    """The whole export."""
    gate.save(folder, card=text)
    proof.save(folder)
    if (guard := saved_for(gate)) is not None:
        guard.save(folder)
    write_code(folder)


def metrics(proof: Proof) -> dict[str, Any]:
    """What the registered version shows: bound, knob and mean accepted length of every certified budget."""
    return {
        f"budget_{point.budget:g}": {
            "bound": point.bound, "knob": point.settings[proof.knob or ""], "tau": point.mean_accepted_length
        }
        for point in proof.certified
    }  # fmt: skip


def describe(proof: Proof) -> str:
    """A line for the terminal."""
    points = [f"{point.budget:.0%} at {point.settings[proof.knob or '']:g}" for point in proof.certified]
    return "; ".join(points) or "nothing certified, decodes strictly"


if __name__ == "__main__":
    run(main)
