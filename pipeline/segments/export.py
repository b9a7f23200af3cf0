"""Both probes with their certificate, and the token gate beside them, as a folder that decodes with plain transformers.

    python -m pipeline.segments.export      models/segments, reports/calibration -> models/segments-export

It runs at what the stage `calibrate` certified for the method `segments` at the headline budget.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from gistgate.core.files import read_json, write_atomic, write_text
from gistgate.export.write import SEGMENTS as CODE
from gistgate.export.write import write_code
from gistgate.segments.build import GATE
from gistgate.segments.probes import load_probes
from pipeline.decode import at_budget, calibration_file
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import MODELS, SEGMENTS
from pipeline.report.tables import markdown_page
from pipeline.run import run

EXPORT = MODELS / "segments-export"
METHOD = "segments"


def main() -> None:
    params = read_params()
    pair, certificate = load_pair(params), certificate_of(params, read_json(calibration_file(METHOD)))
    probes = replace(load_probes(SEGMENTS, pair.target, pair.draft_model), certificate=certificate)
    notes = read_json(SEGMENTS / "config.json")["notes"]

    def fill(folder: Path) -> None:
        probes.save(folder, pair.target, pair.draft_model, **notes)
        shutil.copytree(SEGMENTS / GATE, folder / GATE)
        write_text(folder / "README.md", markdown_page("segments", certificate=certificate, gate=GATE))
        write_code(folder, CODE)

    write_atomic(EXPORT, fill)
    print(f"{EXPORT}: {certificate.get('method', 'nothing certified, decodes strictly')}")


def certificate_of(params: Params, report: dict[str, Any]) -> dict[str, Any]:
    """What the folder runs at, from the calibration of the method; empty where nothing is certified."""
    found, method = at_budget(report, params.headline_budget), params.method(METHOD)
    if found is None or not found["certified"]:
        return {}
    return {
        "method": METHOD,
        "rule": method.rule,
        "settings": {**found["fixed"], method.knob: found["knob"]},
        "budget": params.headline_budget,
        "confidence": report["confidence"],
        "n": found["n"],
        "bound": found["bound"],
    }


if __name__ == "__main__":
    run(main)
