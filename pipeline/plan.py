"""How long a run will take on this machine: answers that it plans, times the seconds of one, which
are measured on a few training prompts before the run begins.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from gistgate.core.batches import decode_all
from gistgate.core.decoder import Decoder
from pipeline.params import Params

TIMED = 2
"""Prompts whose answers are timed one by one."""
ABREAST = 8
"""Prompts whose answers are timed together."""
TRIED = 13
"""Ways in which assisted generation and prompt lookup of transformers are tried."""
LIBRARIES = 7
"""Baselines of a benchmark: plain and strict decoding, transformers and llama.cpp."""
KINDS = 4
"""Adversarial prompts that the stage makes of each one."""
ROLLOUT = 0.5
"""Length of a rollout in answers: it begins somewhere in one."""


def announce(
    params: Params, decoder: Decoder, prompts: Sequence[dict[str, Any]], **request: Any
) -> None:
    """Print the hours of every stage that takes many."""
    texts = [prompt["ids"] for prompt in prompts]
    decoder.generate(texts[:1], **request)  # the first answer pays for what later ones find done
    single = seconds_of(decoder, texts[:TIMED], 1, request)
    together = seconds_of(decoder, texts[:ABREAST], ABREAST, request)
    judged = single if params.decoding.batch_size == 1 else together
    hours = {}
    for stage, answers in planned(params).items():
        seconds = {"benchmark": single, "labels": together}.get(stage, judged)
        hours[stage] = answers * seconds / 3600
    parts = ", ".join(f"{stage} {value:.1f}" for stage, value in hours.items())
    print(
        f"A strict answer takes {single:.1f} s by itself and {together:.1f} s among {ABREAST}. At"
        f" this rate the run takes about {sum(hours.values()):.1f} hours, less where settings are"
        f" refused early ({parts}). After an interruption start it again: what is decoded is kept.",
        flush=True,
    )


def seconds_of(
    decoder: Decoder, texts: Sequence[list[int]], rows: int, request: dict[str, Any]
) -> float:
    """Mean seconds of an answer, so many rows at a time."""
    started = perf_counter()
    decode_all(decoder, texts, batch_size=rows, **request)
    return (perf_counter() - started) / len(texts)


def planned(params: Params) -> dict[str, float]:
    """Answers that the stages decode at most, by stage."""
    prompts = params.prompts
    block = params.calibrate
    calibrated = 0
    for name, method in params.methods.items():
        if method.knob is not None:
            settings = min(len(method.grid), block.settings + 1)
            measured = min(len(method.grid), block.evaluations) + len(method.variants) - 1
            calibrated += settings * prompts.calibration + measured * prompts.development
        elif not params.is_reference(name):
            calibrated += prompts.calibration
    methods = len(params.methods)
    tried = TRIED * params.benchmark.development
    timed = (methods + LIBRARIES) * params.benchmark.prompts * params.benchmark.repeats
    labels = 2 * (params.label.budget or 0) * params.label.rollouts * ROLLOUT
    return {
        "reference": prompts.calibration + prompts.development,
        "labels": 2 * prompts.train + labels,
        "calibrate": calibrated,
        "evaluate": (methods + 1) * prompts.test,
        "benchmark": timed + tried,
        "adversarial": methods * KINDS * params.adversarial.prompts,
    }
