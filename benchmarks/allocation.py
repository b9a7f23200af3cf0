"""What it costs on a processor that freed memory goes back to the system, and how many pages are filled again.

    python -m benchmarks.allocation [--tokens 24] [--batch 32] [--rounds 3] [--results FOLDER]

In the folder of a run with data/prompts and a draft model, on Linux with glibc. Strict decoding, and a rule that weighs
the whole vocabulary (`ensemble` with w = 0.8, without a certificate), decode the same batches with memory that stays
(`gistgate.forward.allocation`) and with memory that goes back, for which the thresholds are those that glibc arrives at
by itself. A process that has once kept memory goes on using it, so that every batch is decoded in two processes of its
own, one behind the other. `returned_vs_kept` are seconds of the one over seconds of the other, with the lowest and the
highest round, or from 8 rounds on with a 90 % bootstrap over them (`kind` says which); `faults` are page faults per new
token.
"""

from __future__ import annotations

import json
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from benchmarks.bench import RESULTS, apart, save
from benchmarks.intervals import ratio_over_rounds
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.forward.allocation import LARGEST, OWN_CHOICE
from pipeline.common.decoders import make_decoder, read_prompts
from pipeline.common.entry import run
from pipeline.params import MethodParams, read_params
from pipeline.speed.clock import Contender, ours

LARGEST_OWN = 32 * 1024 * 1024
"""The highest threshold that glibc moves to by itself, in bytes; it then trims from twice as much on."""
THRESHOLDS = {"kept": (LARGEST, LARGEST), "returned": (LARGEST_OWN, 2 * LARGEST_OWN)}
FEW = 2
"""Tokens of the answers that warm a process up."""


def main(
    tokens: int = 24, batch: int = 32, rounds: int = 3, threads: int = 2, results: Path = RESULTS, child: int = -1
) -> None:
    """`child` is the number of the batch that a process of the measurement decodes."""
    torch.set_num_threads(threads)
    if child >= 0:
        print(json.dumps(decoded(tokens, batch, child)))
        return
    check_sizes(batch, rounds, len(read_prompts("test")))
    arguments = ["--tokens", tokens, "--batch", batch, "--threads", threads]
    turns = [(way, number) for number in range(rounds) for way in list(THRESHOLDS)[:: 1 if number % 2 else -1]]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in THRESHOLDS}
    for way, number in turns:
        found[way].append(in_process(way, [*arguments, "--child", number]))
        print(f"batch {number}, {way}: {found[way][-1]}", flush=True)
    compared = {name: over(name, found) for name in found["kept"][0]}
    sizes = {"batch": batch, "tokens": tokens, "n": rounds}
    save("allocation", {"pair": read_params().pair, **sizes, "decoders": compared}, results)


def check_sizes(batch: int, rounds: int, prompts: int) -> None:
    """Refuse batches that the last processes would not find, before the first one starts.

    Raises:
        UserError: the test prompts are too few.
    """
    if batch * rounds > prompts:
        raise UserError(
            f"{rounds} rounds with a batch of {batch} need {batch * rounds} test prompts, and there are {prompts}. "
            "Lower --batch or --rounds."
        )


def in_process(way: str, arguments: list[Any]) -> dict[str, Any]:
    """What a process with one way of keeping memory found."""
    mmap, trim = map(str, THRESHOLDS[way])
    own = {"MALLOC_MMAP_THRESHOLD_": mmap, "MALLOC_TRIM_THRESHOLD_": trim}
    return apart("benchmarks.allocation", arguments, own, without=OWN_CHOICE)


def decoded(tokens: int, batch: int, number: int) -> dict[str, dict[str, float]]:
    """Seconds and page faults of one batch, by decoder."""
    workload = Workload.load(batch * (number + 1))
    prompts, block = workload.ids[batch * number :], workload.params.decoding.block
    weighed = make_decoder(workload.pair, MethodParams("ensemble"), {"w": 0.8}, block)
    found = {}
    for name, decoder in {"strict": workload.strict(block, "eager"), "ensemble": weighed}.items():
        ours(decoder, {**workload.request, "max_new_tokens": FEW})(prompts)
        contender = Contender(name, ours(decoder, {**workload.request, "max_new_tokens": tokens}), block)
        before = getrusage(RUSAGE_SELF).ru_minflt
        timed = contender.timed(prompts)
        faults = (getrusage(RUSAGE_SELF).ru_minflt - before) / timed.tokens
        found[name] = {"seconds": timed.seconds, "tokens": timed.tokens, "faults": faults}
    return found


def over(name: str, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """What one decoder gains."""
    seconds = {way: [one[name]["seconds"] for one in ones] for way, ones in found.items()}
    faults = {way: sum(one[name]["faults"] for one in ones) / len(ones) for way, ones in found.items()}
    return {"returned_vs_kept": ratio_over_rounds(seconds["returned"], seconds["kept"]), "faults": faults}


if __name__ == "__main__":
    run(main, kept=False)
