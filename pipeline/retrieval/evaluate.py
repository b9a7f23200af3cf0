"""Accuracy and accepted length of every drafter with every rule on the test prompts, at its certified setting.

    python -m pipeline.retrieval.evaluate

Writes reports/retrieval/evaluation.json. `same_answers` is the share of answers that are
plain decoding's token for token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.stage import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.statistics import total
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.binding import binding_of, check_binding
from pipeline.decode import Outcome, make_decoder, read_prompts, run_split
from pipeline.operating import Operating, calibration_file, operating_point
from pipeline.paired import accuracy_difference
from pipeline.pairs import Pair, load_pair
from pipeline.params import MethodParams, Params
from pipeline.prefilled import Prefilled
from pipeline.retrieval.params import REPORTS, retrieval_params
from pipeline.tasks import Task, load_task


def main() -> None:
    params = retrieval_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("test")
    prefilled = Prefilled(params.decoding.prompt_memory_mb)

    def outcomes(decoder: Decoder, title: str) -> list[Outcome]:
        return run_split(decoder, task, pair, prompts, params, title, prefilled)

    plain = outcomes(make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0), "plain")
    report = {}
    for name in params.methods:
        point = certified_point(params, name, pair, task)
        report[name] = {**point.as_dict(), **compared(outcomes(decoder_of(point, pair), name), plain)}
        print(f"{name}: tau {report[name]['mean_accepted_length']:.2f}, {report[name]['accuracy_difference']}")
    write_json(REPORTS / "evaluation.json", {"n": len(prompts), "methods": report})


def certified_point(params: Params, name: str, pair: Pair, task: Task) -> Operating:
    """Where a method runs; its certificate has to be for these models, prompts and texts.

    Raises:
        UserError: it was made for others.
    """
    point = operating_point(params, name, reports=REPORTS)
    if point.knob is not None:
        certificate = read_json(calibration_file(params, name, REPORTS))
        if changed := check_binding(certificate, binding_of(params, name, pair, task, None)):
            raise UserError(f"The certificate of '{name}' does not hold here: {changed[0]} Calibrate again.")
    return point


def decoder_of(point: Operating, pair: Pair, **parts: Any) -> Decoder:
    """The decoder at an operating point."""
    return make_decoder(pair, point.as_method(), point.settings, point.block, **parts)


def compared(outcomes: list[Outcome], plain: list[Outcome]) -> dict[str, Any]:
    """A method beside plain decoding on the same prompts."""
    scores, reference = (np.array([one.score for one in rows], float) for rows in (outcomes, plain))
    counted = total([one.statistics for one in outcomes])
    return {
        "accuracy": float(scores.mean()),
        "accuracy_difference": accuracy_difference(scores, reference).as_dict(),
        "same_answers": float(np.mean([a.ids == b.ids for a, b in zip(outcomes, plain, strict=True)])),
        "mean_accepted_length": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
    }


if __name__ == "__main__":
    run(main)
