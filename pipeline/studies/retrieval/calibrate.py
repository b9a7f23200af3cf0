"""Certify SENSE's soft gate together with each drafter: the loosest setting at every budget.

    python -m pipeline.studies.retrieval.calibrate              every method of the study that has a knob
    python -m pipeline.studies.retrieval.calibrate sen-sense    one of them

Works as `pipeline.stages.calibrate` does, by fixed-sequence testing, and writes reports/retrieval/calibration.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import pipeline.studies.retrieval.drafters  # noqa: F401 (adds the study's drafters)
from pipeline.certification.looks import Study
from pipeline.common.entry import run
from pipeline.stages.calibrate import calibrate_all
from pipeline.studies.retrieval.params import REPORTS, read_retrieval_params, retrieval_params

MODULES = tuple(f"pipeline.studies.retrieval.{name}" for name in ("datastore", "calibrate"))
"""Stages that lead to the tested settings."""


def main(methods: Annotated[list[str] | None, typer.Argument(help="Methods by name, else all.")] = None) -> None:
    params = retrieval_params()
    names = methods or [name for name, method in params.methods.items() if method.knob is not None]
    calibrate_all(params, [name for name in names if params.method(name)], REPORTS, retrieval_study())


def retrieval_study() -> Study:
    """Who certifies here, with what the drafters of the study are made of."""
    own = read_retrieval_params()
    return Study("retrieval", [asdict(own.datastore), asdict(own.choice)], MODULES)


if __name__ == "__main__":
    run(main)
