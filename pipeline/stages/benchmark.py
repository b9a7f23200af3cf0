"""Time every method against every baseline, prompt by prompt in one process.

    python -m pipeline.stages.benchmark          writes reports/benchmark.json

Each prompt is decoded by all contenders before the next prompt begins, in an order that rotates, so that a machine that
slows down slows all of them. A prompt that any contender answers with a loop is dropped for all; `loops` says how many
were dropped. One row at a time; times include prefill. Loose methods run at their certified setting and K. Strict
decoding runs at its own best K as well, and all methods that run strictly share its times.
"""

from __future__ import annotations

from typing import Any

import torch
from tqdm import tqdm

from gistgate.files import write_json
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.speed.clock import Contender, drop_loops, machine
from pipeline.speed.lineup import contenders


def main() -> None:
    benchmark(read_params())


def benchmark(params: Params) -> None:
    """Time every method of `params` and write benchmark.json beside their other results."""
    torch.set_num_threads(params.benchmark.threads)
    pair = load_pair(params)
    prompts = read_prompts("test")[: params.benchmark.prompts]
    field = contenders(params, pair, prompts)
    times = measure(field, [prompt["ids"] for prompt in prompts], params)
    write_json(params.reports / "benchmark.json", {**times, "machine": machine()})


def measure(field: list[Contender], prompts: list[list[int]], params: Params) -> dict[str, Any]:
    """Seconds, tokens and target forwards of every contender on every prompt that nobody answered with a loop."""
    for contender in field:  # warm up: the first call of everything pays for what later ones find done
        contender.decode([prompts[0]])
    results = {c.name: {"block": c.block, "seconds": [], "tokens": [], "target_forwards": []} for c in field}
    loops = []
    for place, ids in enumerate(tqdm(prompts, desc="benchmark", unit="prompt")):
        runs: dict[str, list[Any]] = {contender.name: [] for contender in field}
        for repeat in range(params.benchmark.repeats):
            turn = (place + repeat) % len(field)
            for contender in [*field[turn:], *field[:turn]]:
                runs[contender.name].append(contender.timed([ids]))
        loops.append(any(run.loops for timed in runs.values() for run in timed))
        for name, timed in runs.items():
            results[name]["seconds"].append([run.seconds for run in timed])
            results[name]["tokens"].append(timed[0].tokens)
            results[name]["target_forwards"].append(timed[0].forwards)
    drop_loops(results, loops)
    baselines = {c.name: results[c.name] for c in field if c.is_baseline}
    methods = {name: results[c.name] for c in field for name in ([] if c.is_baseline else [c.name]) + list(c.also)}
    return {"baselines": baselines, "methods": methods}


if __name__ == "__main__":
    run(main)
