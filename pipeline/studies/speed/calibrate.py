"""Certify the methods of pipeline/studies/speed/params.yaml, each at its own K; writes reports/speed/<method>.json.

python -m pipeline.studies.speed.calibrate
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.common.operating_point import OWN_REPORTS
from pipeline.stages.calibrate import calibrate_all
from pipeline.studies.speed.params import speed_params
from pipeline.studies.table.study import table_study


def main() -> None:
    params = speed_params()
    calibrate_all(params, list(params.methods), OWN_REPORTS, table_study("speed"))


if __name__ == "__main__":
    run(main)
