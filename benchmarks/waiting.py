"""What it costs on a processor that threads sleep between two products instead of waiting for the next one.

    python -m benchmarks.waiting [--rounds 3] [--calls 15] [--threads 2] [--results FOLDER]

In the folder of a run whose pair has a draft model, with PyTorch's libgomp (Linux); batch 1, eager engine. Draft
steps, plain steps and verifications of K + 1 tokens run in processes whose threads sleep at once (GOMP_SPINCOUNT=0,
which is what OMP_WAIT_POLICY=PASSIVE means), and in processes whose threads wait for a fraction of a millisecond
first, as `benchmarks` and `make` ask for. The processes take turns. `asleep_vs_waiting` are milliseconds of the one
over those of the other, with the lowest and the highest round, or from 8 rounds on with a 90 % bootstrap over them
(`kind` says which); `milliseconds` are the means of the rounds' medians.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.bench import RESULTS, apart, save
from benchmarks.intervals import ratio_over_rounds
from benchmarks.parts import DraftStep, Forward, once, warm
from gistgate.errors import UserError
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import read_params

WAYS = {"asleep": "0", "waiting": "10000"}
"""Turns of the loop in which a thread waits before it sleeps."""


def main(rounds: int = 3, calls: int = 15, threads: int = 2, results: Path = RESULTS, child: bool = False) -> None:
    """`child` marks a process of the measurement."""
    torch.set_num_threads(threads)
    if child:
        print(json.dumps(milliseconds(calls)))
        return
    params = read_params()
    arguments = ["--calls", calls, "--threads", threads, "--child"]
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            found[way].append(apart("benchmarks.waiting", arguments, {"GOMP_SPINCOUNT": WAYS[way]}))
            print(f"round {number}, {way}: {found[way][-1]}", flush=True)
    compared = {name: over(name, found) for name in found["waiting"][0]}
    about = {"pair": params.pair, "block": params.decoding.block, "n": rounds, "calls": calls}
    save("waiting", {**about, "parts": compared}, results)


def milliseconds(calls: int) -> dict[str, float]:
    """The median of some calls of every part.

    Raises:
        UserError: the pair has no draft model.
    """
    params = read_params()
    pair = load_pair(params)
    if pair.draft is None:
        raise UserError("This pair has no draft model whose steps could be timed. Choose another pair.")
    block = params.decoding.block
    parts = {
        "draft step": (DraftStep(pair.draft, block), block),
        "plain step": (Forward(pair.target, 1), 1),
        "verification": (Forward(pair.target, block + 1), 1),
    }
    return {name: 1000 * typical(part, calls) / steps for name, (part, steps) in parts.items()}


@torch.inference_mode()
def typical(part: Any, calls: int) -> float:
    """Median seconds of a part."""
    call = warm(part, "eager")
    return median(once(call) for _ in range(calls))


def over(name: str, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """One part, asleep over waiting."""
    spent = {way: [one[name] for one in ones] for way, ones in found.items()}
    means = {way: sum(some) / len(some) for way, some in spent.items()}
    return {"asleep_vs_waiting": ratio_over_rounds(spent["asleep"], spent["waiting"]), "milliseconds": means}


if __name__ == "__main__":
    run(main, kept=False)
