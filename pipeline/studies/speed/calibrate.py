"""Certify the methods of pipeline/studies/speed/params.yaml, each at its own K; writes reports/speed/<method>.json.

    python -m pipeline.studies.speed.calibrate

The calibration prompts are as many as the run's, and none of them was judged for anything else: K was chosen after the
run's had been judged at the common K.
"""

from __future__ import annotations

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.prompts import Prompt
from pipeline.certification.further import new_prompts
from pipeline.common.entry import run
from pipeline.common.operating_point import OWN_REPORTS
from pipeline.common.reading import read
from pipeline.params import Params
from pipeline.stages.calibrate import calibrate_all
from pipeline.studies.speed.params import FILE, SpeedParams, speed_params
from pipeline.studies.table.study import table_study

STUDY, MODULE = "speed", "pipeline.studies.speed.calibrate"


def main() -> None:
    params = speed_params()
    calibrate_all(params, list(params.methods), OWN_REPORTS, table_study(STUDY, modules=(MODULE,)), fresh(params))


def fresh(params: Params) -> list[Prompt]:
    """As many calibration prompts as the run has, which no other stage uses.

    Raises:
        UserError: the task has fewer unused documents.
    """
    size, draw = params.prompts.calibration, params.prompts.draw + read(SpeedParams, FILE).judged
    prompts = new_prompts(params, size, STUDY, draw)
    if len(prompts) < size:
        raise UserError(
            f"prompts.calibration asks for {size} prompts, but draw {draw} of the task '{params.task}' has only "
            f"{len(prompts)} unused ones for methods at their own K. Lower prompts.calibration or prompts.draw."
        )
    return prompts


if __name__ == "__main__":
    run(main)
