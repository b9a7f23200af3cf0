"""Accuracy and accepted length of every soft method on the test prompts, at its certified setting.

    python -m pipeline.studies.retrieval.evaluate

Reads the verdicts on plain decoding from reports/evaluation, writes reports/retrieval/evaluation.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipeline.studies.retrieval.drafters  # noqa: F401 (adds the study's drafters)
from gistgate.certificates.certificate import scope_mismatch
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines, write_json
from gistgate.integrations.lm_eval.task import Task
from gistgate.request.statistics import total
from pipeline.common.decoders import Outcome, make_decoder, read_prompts, run_split
from pipeline.common.entry import run
from pipeline.common.operating_point import Operating, calibration_file, operating_point
from pipeline.common.scope import scope_of
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import Params
from pipeline.report.paired_statistics import accuracy_difference
from pipeline.studies.retrieval.params import REPORTS, retrieval_params
from pipeline.tasks.loading import load_task

PLAIN = Path("reports/evaluation/plain/samples.jsonl")


def main() -> None:
    params = retrieval_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("test")
    plain = plain_scores(prompts)
    report = {}
    for name in (name for name, method in params.methods.items() if method.knob is not None):
        point = certified_point(params, name, pair, task)
        done = run_split(decoder_of(point, pair), task, pair, prompts, params, name)
        report[name] = {**point.as_dict(), **compared(done, plain)}
        print(f"{name}: tau {report[name]['mean_accepted_length']:.2f}, {report[name]['accuracy_difference']}")
    write_json(REPORTS / "evaluation.json", {"n": len(prompts), "methods": report})


def plain_scores(prompts: list[dict[str, Any]]) -> list[float]:
    """lm-eval's verdicts on plain decoding, in the order of the prompts.

    Raises:
        UserError: they are of other prompts.
    """
    found = {row["id"]: float(row["correct"]) for row in read_json_lines(PLAIN)}
    if missing := [prompt["id"] for prompt in prompts if prompt["id"] not in found]:
        raise UserError(f"{PLAIN} has no '{missing[0]}'. Run the stage `evaluate` again.")
    return [found[prompt["id"]] for prompt in prompts]


def certified_point(params: Params, name: str, pair: Pair, task: Task) -> Operating:
    """Where a method runs; its certificate has to be for these models, prompts and texts.

    Raises:
        UserError: it was made for others.
    """
    point = operating_point(params, name, reports=REPORTS)
    if point.knob is not None:
        certified = read_json(calibration_file(params, name, REPORTS))["proof"]["scope"]
        if broken := scope_mismatch(certified, scope_of(params, name, pair, task, None)):
            raise UserError(f"Method '{name}': {broken}")
    return point


def decoder_of(point: Operating, pair: Pair, **parts: Any) -> Decoder:
    """The decoder at an operating point."""
    return make_decoder(pair, point.as_method(), point.settings, point.block, **parts)


def compared(outcomes: list[Outcome], plain: list[float]) -> dict[str, Any]:
    """A method beside plain decoding on the same prompts."""
    scores, counted = [one.score for one in outcomes], total([one.statistics for one in outcomes])
    return {
        "accuracy": sum(scores) / len(scores),
        "accuracy_difference": accuracy_difference(scores, plain).as_dict(),
        "mean_accepted_length": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
    }


if __name__ == "__main__":
    run(main)
