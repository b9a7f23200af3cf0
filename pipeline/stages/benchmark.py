"""Time every method against every baseline, prompt by prompt in one process.

    python -m pipeline.stages.benchmark          writes reports/benchmark.json

Each prompt is decoded by all contenders before the next prompt begins, in an order that rotates, so that a machine that
slows down slows all of them. A prompt that any contender answers with a loop is dropped for all; `loops` says how many
were dropped. One row at a time; times include prefill. Loose methods run at their certified setting and K. Strict
decoding runs at its own best K as well, and all methods that run strictly share its times. transformers' assisted
generation and prompt lookup run at the K, or the defaults, that is fastest on development prompts. Whatever of
transformers does not run with this pair is listed under `failed` with the reason.
"""

from __future__ import annotations

from pathlib import Path

import torch

from gistgate.files import write_json
from pipeline.certification.method_parts import method_parts
from pipeline.common.decoders import read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.operating_point import operating_point
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.pairs.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.speed.baselines import chosen
from pipeline.speed.clock import machine
from pipeline.speed.kept_laps import KeptLaps
from pipeline.speed.lineup import NAMES, contenders, static
from pipeline.speed.race import by_kind, race, working


def main() -> None:
    benchmark(read_params())


def benchmark(params: Params) -> None:
    """Time every method of `params` and write benchmark.json beside their other results."""
    torch.set_num_threads(params.benchmark.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    development = read_prompts("development")[: params.benchmark.development]
    kept = KeptLaps(SCRATCH / f"benchmark-{dependencies(params)}")
    blocks, refused = chosen(pair, request_of(prompts, pair), [prompt["ids"] for prompt in development], kept.chosen)
    able, failed = working([static(pair, prompts)], [prompts[0]["ids"]])
    failed |= {NAMES[name]: why for name, why in refused.items()}
    field = [*contenders(params, pair, prompts, blocks), *able]
    times = race(field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark", kept)
    about = {"chosen_on": len(development), "failed": failed, "machine": machine()}
    write_json(params.reports / "benchmark.json", {**by_kind(field, times), **about})
    kept.remove()


def dependencies(params: Params) -> str:
    """A name for all that the times depend on, besides the machine."""
    parts = [part for name in params.methods for part in method_parts(params, operating_point(params, name))]
    files = [Path("data/prompts/development.jsonl"), *sources("pipeline.stages.benchmark")]
    return fingerprint(*dict.fromkeys(parts), repr(params.benchmark), repr(machine()), *files)  # the pair's files once


if __name__ == "__main__":
    run(main)
