"""Let lm-eval judge certified segments on the test prompts.

    python -m pipeline.studies.segments.evaluate

Reads data/prompts, models/segments, reports/segments/calibration and the strict reference in reports/evaluation, writes
reports/segments/evaluation. Only what is certified is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines, write_json
from pipeline.common.pool import side_by_side
from pipeline.params import Params, read_params
from pipeline.report.paired_statistics import accuracy_difference
from pipeline.stages.evaluate import Evaluation
from pipeline.studies.segments.calibrate import REPORTS, Segments
from pipeline.studies.segments.methods import METHODS, methods_of
from pipeline.studies.segments.params import read_segment_params

STRICT = Path("reports/evaluation/exact/samples.jsonl")
FOLDER = Path("reports/segments/evaluation")


def main() -> None:
    params, methods = read_params(), methods_of(read_segment_params())
    FOLDER.mkdir(parents=True, exist_ok=True)  # DVC expects it, also where nothing is certified
    names = [name for name in methods if read_json(REPORTS / f"{name}.json")["certified"] is not None]
    side_by_side(evaluator, params, names, params.decoding.workers, "evaluate", "method")


def evaluator(params: Params) -> Callable[[str], None]:
    """Judges one method after another on the same pair and prompts."""
    segments, evaluation = Segments(params), Evaluation(params)
    parts = replace(segments.parts, pair=evaluation.pair)  # lm-eval's model and the decoder share one target
    strict = read_json_lines(STRICT)
    if [row["id"] for row in strict] != [prompt["id"] for prompt in evaluation.prompts]:
        raise UserError(f"{STRICT} speaks of other prompts. Run the stage `evaluate` of dvc.yaml again.")

    def work(name: str) -> None:
        value = read_json(REPORTS / f"{name}.json")["certified"]
        judged = evaluation.judge(METHODS[name].decoder(parts, value))
        found = [sample["correct"] for sample in judged.samples]
        write_json(
            FOLDER / f"{name}.json",
            {
                "value": value,
                "accuracy": judged.accuracy,
                "tau": judged.statistics.mean_accepted_length,
                "difference": accuracy_difference(found, [row["correct"] for row in strict]).as_dict(),
            },
        )

    return work


if __name__ == "__main__":
    run(main)
