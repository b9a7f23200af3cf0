"""Calibrate what only the large table compares, as the stage `calibrate` does.

python -m pipeline.studies.table.calibrate free       the rules without a gate
python -m pipeline.studies.table.calibrate learned    the rules that ask a gate
python -m pipeline.studies.table.calibrate fsd        one rule
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.stages.calibrate import calibrate_all, make_folder, methods_of
from pipeline.studies.table.params import table_params
from pipeline.studies.table.study import table_study


def main(group: str) -> None:
    params = table_params()
    make_folder(params, group)
    names = methods_of(params, group)
    asked = [name for name in names if params.methods[name].extra or name == group]
    calibrate_all(params, asked, study=table_study())


if __name__ == "__main__":
    run(main)
