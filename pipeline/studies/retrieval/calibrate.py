"""Certify SENSE's soft gate together with each drafter: the loosest setting at every budget.

    python -m pipeline.studies.retrieval.calibrate              every method of the study that has a knob
    python -m pipeline.studies.retrieval.calibrate sen-sense    one of them

Works as `pipeline.stages.calibrate` does, by fixed-sequence testing, and writes reports/retrieval/calibration.
"""

from __future__ import annotations

import sys
from functools import partial

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from pipeline.common.pool import side_by_side
from pipeline.stages.calibrate import calibrator
from pipeline.studies.retrieval.params import REPORTS, retrieval_params


def main() -> None:
    params = retrieval_params()
    names = sys.argv[1:] or [name for name, method in params.methods.items() if method.knob is not None]
    for name in names:
        params.method(name)
    side_by_side(partial(calibrator, reports=REPORTS), params, names, params.decoding.workers, "calibrate", "method")


if __name__ == "__main__":
    run(main)
