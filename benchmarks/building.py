"""How long programs take to build: all layers as one program, or one layer's program called for each.

    python -m benchmarks.building MODEL [--tokens 1,9] [--calls 15] [--threads 2] [--results FOLDER]

MODEL is a hub id or a folder. A forward of each number of new tokens becomes a program in both ways; whatever the
compiler keeps on disk is left out. Then both are called by turns: `step_whole_vs_chained` is the time of the one over
that of the other, with a 90 % bootstrap over calls. Writes building-<cpu|gpu>.json; on a GPU the programs are replayed
as graphs, whose recording counts as building.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts
from benchmarks.parts import CONTEXT, Forward, ints, memory_of, once
from gistgate.build.models import load_target
from gistgate.decoding.engines.chain import chained
from gistgate.decoding.engines.program import Captured, compiled, trace
from gistgate.decoding.engines.slots import attending_to_slots
from gistgate.errors import UserError
from gistgate.identity import identify_model
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.entry import run
from pipeline.speed.clock import synchronise

WAYS: dict[str, Callable[..., Any]] = {
    "whole": compiled,
    "chained": lambda graph, example: chained(graph, example, compiled),
}


def main(model: str, tokens: str = "1,9", calls: int = 15, threads: int = 2, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    loaded = load_target(model).model
    found = {}
    for width in counts(tokens, "--tokens"):
        found[str(width)] = both(loaded, width, calls)
        print(f"{width} tokens: {found[str(width)]}", flush=True)
        save("building", {"model": asdict(identify_model(loaded)), "calls": calls, "tokens": found}, results)


def both(model: Any, width: int, calls: int) -> dict[str, Any]:
    """Seconds that either way takes to build a forward of `width` tokens, and how fast what was built is.

    Raises:
        UserError: fewer than three layers of this model are alike.
    """
    inputs, memory = [ints(model, width), ints(model, 1, CONTEXT)], memory_of(model, CONTEXT)
    programs, seconds = {}, {}
    for way in WAYS:
        started = perf_counter()
        program = built(way, Forward(model, width), memory, inputs)
        synchronise()
        programs[way], seconds[way] = partial(program, *memory, *inputs), perf_counter() - started
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(calls):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            spent[way].append(once(programs[way]))
    ratio = ratio_of_sums(spent["whole"], spent["chained"]).as_dict()
    return {"seconds_to_build": seconds, "step_whole_vs_chained": ratio}


def built(way: str, function: Forward, memory: list[torch.Tensor], inputs: list[torch.Tensor]) -> Any:
    """A program that has been called once, compiled without what earlier ones left on disk."""
    from torch._inductor.utils import fresh_cache

    example = [*memory, *inputs]
    with torch.inference_mode(False), torch.no_grad(), fresh_cache(), attending_to_slots(function.model):
        program = WAYS[way](trace(function, example), example)
        if program is None:
            raise UserError(
                "Fewer than three layers of this model are alike, so that nothing is called again. Name another model."
            )
        if inputs[0].is_cuda:
            program = Captured(program, memory, inputs)
        program(*example)
    return program


if __name__ == "__main__":
    run(main, kept=False)
