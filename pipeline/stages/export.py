"""The headline gate as a folder that decodes with plain transformers, registered as a model.

    python -m pipeline.stages.export      models/heads/<head>, reports/calibration/<method>.json -> models/export

The method is the one that asks the gate of `train.headline_head`. The folder holds its certificate and, unless
`prompts.guard` is 0, a guard that notices prompts unlike those of the task. Equal inputs give equal bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.core.certificate import Certificate, certificate_from
from gistgate.core.files import read_json, write_atomic
from gistgate.core.gate import Gate
from gistgate.core.guards import DomainGuard
from gistgate.core.identity import gate_hash
from gistgate.core.utils import UserError
from gistgate.export.write import write_code
from pipeline.decode import calibration_file, gate_folder, operating_point, read_prompts
from pipeline.heads.guard import FEWEST, fit_domain
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import EXPORT
from pipeline.report.tables import card, evaluations
from pipeline.run import run
from pipeline.tasks import load_task
from pipeline.tracking import register_gate


def main() -> None:
    params = read_params()
    name = exported_method(params)
    report = read_json(calibration_file(params, name))
    gate = Gate.load(gate_folder(params.train.headline_head))
    certificate = certificate_from(report["proof"])
    if certificate.scope["gate"] != gate_hash(gate):
        raise UserError(
            f"The calibration of '{name}' was made with other weights than the gate's. Run the stage `calibrate` again."
        )
    guard, text = guard_for(params, name), card(gate.config, certificate, report, evaluations(name))

    def write(folder: Path) -> None:
        gate.save(folder, card=text)
        certificate.save(folder)
        if guard is not None:
            guard.save(folder)
        write_code(folder)

    write_atomic(EXPORT, write)
    version = register_gate(params, EXPORT, metrics(certificate))
    points = [f"{point.budget:.0%} at {point.settings[certificate.knob or '']:g}" for point in certificate.certified]
    said = "; ".join(points) or "nothing certified, decodes strictly"
    print(f"{EXPORT}: {said}" + (f"; registered as version {version}" if version else ""))


def exported_method(params: Params) -> str:
    """The calibrated method that asks the headline head; the first of several."""
    head = params.train.headline_head
    for name, method in params.methods.items():
        if method.head == head and method.knob is not None:
            return name
    raise UserError(
        f"No method of params.yaml asks the head '{head}', so nothing is calibrated for it. Add one under 'methods', "
        "or change 'train.headline_head'."
    )


def guard_for(params: Params, name: str) -> DomainGuard | None:
    """The domain guard of the method at its certified setting; where there is none, it says why."""
    if not params.prompts.guard:
        return None
    point = operating_point(params, name)
    if not point.certified:
        print(f"No domain guard: '{name}' has no certified setting, so it runs strictly and needs none.")
        return None
    prompts = read_prompts("guard")
    if len(prompts) < FEWEST:
        print(
            f"No domain guard: {len(prompts)} guard prompts do not say what is usual. Raise prompts.guard to {FEWEST} "
            "or more."
        )
        return None
    pair = load_pair(params)
    gate = Gate.load(gate_folder(params.train.headline_head), pair.target, pair.draft, pair.tokenizer)
    return fit_domain(params, pair, load_task(params), gate, point, prompts)


def metrics(certificate: Certificate) -> dict[str, Any]:
    """What the registered version shows: bound, knob and mean accepted length of every certified budget."""
    return {
        f"budget_{point.budget:g}": {
            "bound": point.bound,
            "knob": point.settings[certificate.knob or ""],
            "tau": point.mean_accepted_length,
        }
        for point in certificate.certified
    }


if __name__ == "__main__":
    run(main)
