"""Certify SENSE's soft gate together with each drafter: the loosest setting at every budget.

    python -m pipeline.studies.retrieval.calibrate              every method of pipeline/studies/retrieval/params.yaml that has a knob
    python -m pipeline.studies.retrieval.calibrate sen-sense    one of them

Works as `pipeline.stages.calibrate` does, by fixed-sequence testing, and writes reports/retrieval/calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gistgate.files import write_json
from pipeline.certification.outcomes import Arm, Bench
from pipeline.common.entry import run
from pipeline.common.operating_point import calibration_file
from pipeline.common.pool import side_by_side
from pipeline.params import Params
from pipeline.stages.calibrate import calibrate, summary
from pipeline.studies.retrieval.params import REPORTS, retrieval_params


def main(methods: Annotated[list[str] | None, typer.Argument(help="Methods by name, else all.")] = None) -> None:
    params = retrieval_params()
    names = methods or [name for name, method in params.methods.items() if method.knob is not None]
    for name in names:
        params.method(name)
    side_by_side(calibrator, params, names, params.decoding.workers, "calibrate", "method")


def calibrator(params: Params) -> Callable[[str], None]:
    """Calibrates one method after another on the same pair and prompts."""
    bench = Bench(params)

    def work(name: str) -> None:
        report = calibrate(Arm(bench, name))
        write_json(calibration_file(params, name, REPORTS), report)
        print(f"{name}: {summary(report)}")

    return work


if __name__ == "__main__":
    run(main)
