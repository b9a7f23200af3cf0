"""Time every method against every baseline, prompt by prompt in one process.

    python -m pipeline.stages.benchmark          writes reports/benchmark.json

Each prompt is decoded by all contenders before the next prompt begins, in an order that rotates, so that a machine that
slows down slows all of them. A prompt that any contender answers with a loop is dropped for all; `loops` says how many
were dropped. One row at a time; times include prefill. Loose methods run at their certified setting and K. Strict
decoding runs at its own best K as well, and all methods that run strictly share its times.
"""

from __future__ import annotations

import torch

from gistgate.files import write_json
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.speed.clock import machine
from pipeline.speed.lineup import contenders
from pipeline.speed.race import by_kind, race


def main() -> None:
    benchmark(read_params())


def benchmark(params: Params) -> None:
    """Time every method of `params` and write benchmark.json beside their other results."""
    torch.set_num_threads(params.benchmark.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    field = contenders(params, pair, prompts)
    times = race(field, [[prompt["ids"]] for prompt in prompts], params.benchmark.repeats, "benchmark")
    write_json(params.reports / "benchmark.json", {**by_kind(field, times), "machine": machine()})


if __name__ == "__main__":
    run(main)
