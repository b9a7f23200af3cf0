"""What it costs on a processor that freed memory goes back to the system, and how many pages are filled again.

    python -m benchmarks.allocation [--tokens 24] [--batches 8,32] [--rounds 3] [--results FOLDER]

In the folder of a run with data/prompts and a draft model, on Linux with glibc. Strict decoding, and a rule that weighs
the whole vocabulary (`ensemble` with w = 0.8, without a certificate), decode the same batches, in turn with memory that
stays (`gistgate.forward.allocation`) and with memory that goes back, for which the thresholds are those that glibc
arrives at by itself. `returned_vs_kept` are seconds of the one over seconds of the other; `faults` are page faults per
new token.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch

from benchmarks.bench import RESULTS, save, side_by_side
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.forward.allocation import MOST, keep_freed_memory, set_thresholds
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.decoders import make_decoder
from pipeline.common.entry import run
from pipeline.params import MethodParams
from pipeline.speed.clock import Contender, Decode, Prompts, ours

LARGEST_OWN = 32 * 1024 * 1024
"""The highest threshold that glibc moves to by itself, in bytes; it then trims from twice as much on."""
THRESHOLDS = {"kept": (MOST, MOST), "returned": (LARGEST_OWN, 2 * LARGEST_OWN)}


def main(tokens: int = 24, batches: str = "8,32", rounds: int = 3, threads: int = 2, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    if not keep_freed_memory():
        raise UserError(
            "This C library keeps no freed memory, or the environment has chosen. Unset MALLOC_* and retry."
        )
    sizes = [int(size) for size in batches.split(",")]
    workload = Workload.load(max(sizes) * rounds)
    found = {str(size): measure(workload, size, rounds, tokens) for size in sizes}
    save("allocation", {"pair": workload.pair.name, "tokens": tokens, "n": rounds, "batches": found}, results)


def measure(workload: Workload, size: int, rounds: int, tokens: int) -> dict[str, Any]:
    """One batch size: ratios of seconds with intervals, and page faults."""
    print(f"batch {size}")
    block = workload.params.decoding.block
    weighed = make_decoder(workload.pair, MethodParams("ensemble"), {"w": 0.8}, block)
    decoders = {"strict": workload.strict(block, "eager"), "ensemble": weighed}
    request = {**workload.request, "max_new_tokens": tokens}
    counts: dict[tuple[str, str], list[float]] = {(name, way): [] for name in decoders for way in THRESHOLDS}
    field = [
        Contender(f"{name}, {way}", partial(counted, ours(decoder, request), way, counts[name, way]), 0)
        for name, decoder in decoders.items()
        for way in THRESHOLDS
    ]
    prompts = [workload.ids[first : first + size] for first in range(0, size * rounds, size)]
    times = side_by_side(field, prompts)
    return {name: compared(name, times, counts) for name in decoders}


def counted(decode: Decode, way: str, faults: list[float], batch: Prompts) -> tuple[list[list[int]], int | None]:
    """Decode with one way of keeping memory, and note page faults per new token."""
    set_thresholds(*THRESHOLDS[way])
    ctypes.CDLL(None).malloc_trim(0)
    before = getrusage(RUSAGE_SELF).ru_minflt
    answers, forwards = decode(batch)
    faults.append((getrusage(RUSAGE_SELF).ru_minflt - before) / sum(map(len, answers)))
    return answers, forwards


def compared(name: str, times: dict[str, dict[str, Any]], counts: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    """What one decoding gains; the first batch of everything warms up and is not counted."""
    seconds = {way: times[f"{name}, {way}"]["seconds"] for way in THRESHOLDS}
    per_token = {way: sum(faults[1:]) / len(faults[1:]) for way in THRESHOLDS for faults in [counts[name, way]]}
    return {"returned_vs_kept": ratio_of_sums(seconds["returned"], seconds["kept"]).as_dict(), "faults": per_token}


if __name__ == "__main__":
    run(main)
