"""How much of what speculative decoding could give arrives: measured parts against whole rounds.

    python -m benchmarks.limit [--prompts 20] [--steps 60] [--results FOLDER]

In the folder of a finished run, batch 1. c is one draft step in target steps, v the verification of K + 1 tokens in
target steps, both of the same engine; with tau tokens per round, decoding can be tau / (v + K c) times as fast as
plain steps are. `reached` is the share of that which whole rounds, host included, attain.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.bench import RESULTS, command, save
from benchmarks.parts import DraftStep, Forward, Verification, bandwidth, seconds_of
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from pipeline.timed import synchronise


def main(prompts: int = 20, steps: int = 60, threads: int = 1, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    workload = Workload.load(prompts)
    own = workload.params.decoding.strict_block
    cases: dict[str, Callable[[str], Decoder]] = {f"strict K={own}": lambda engine: workload.strict(own, engine)}
    cases |= {name: lambda engine, name=name: workload.method(name, engine) for name in chosen(workload)}
    found: dict[str, Any] = {}
    for engine in ("eager", "compiled"):
        step = step_seconds(workload, engine, 1, steps)
        found[engine] = {"target_step_ms": 1000 * step, **bandwidth(workload.pair.target, step)}
        for name, make in cases.items():
            found[engine][name] = limit(workload, make(engine), engine, step, steps)
            print(engine, name, {key: round(value, 3) for key, value in found[engine][name].items()}, flush=True)
    save("limit", {"pair": workload.pair.name, "engines": found}, results)


def chosen(workload: Workload) -> list[str]:
    """The learned method, and the best rule without a gate if there is one."""
    free = [name for name, point in workload.points.items() if point.head is None]
    return [workload.headline, *[name for name in ("ensemble", "fly") if name in free][:1]]


def limit(workload: Workload, decoder: Decoder, engine: str, step: float, steps: int) -> dict[str, float]:
    """Parts and whole of one decoder, in target steps and shares."""
    num = decoder.block
    draft = seconds_of(DraftStep(workload.pair.draft, num), engine, steps) / num
    verify = step_seconds(workload, engine, num + 1, steps)
    whole, tau, shares = rounds(workload, decoder)
    c, v = draft / step, verify / step
    best = tau / (v + num * c)
    return {
        "block": num,
        "c": c,
        "v": v,
        "tau": tau,
        "round_ms": 1000 * whole,
        "possible": best,
        "attained": tau * step / whole,
        "reached": (verify + num * draft) / whole,
        "outside_models": max(0.0, 1 - (verify + num * draft) / whole),
        **judging(workload, decoder, verify, whole, steps),
        **{f"share_{part}": share for part, share in shares.items()},
    }


def judging(workload: Workload, decoder: Decoder, verify: float, whole: float, steps: int) -> dict[str, float]:
    """Share of a round that gate and rule cost: the whole verification program against the bare forward.

    On the eager engine the host counts it (`share_accept`).
    """
    if decoder.engine.name != "compiled":
        return {}
    return {
        "judging": max(0.0, seconds_of(Verification(decoder, workload.request), "compiled", steps) - verify) / whole
    }


def step_seconds(workload: Workload, engine: str, tokens: int, steps: int) -> float:
    """Seconds of one target forward of `tokens` new tokens."""
    return seconds_of(Forward(workload.pair.target, tokens), engine, steps)


def rounds(workload: Workload, decoder: Decoder) -> tuple[float, float, dict[str, float]]:
    """Median over prompts of a round's seconds, mean tokens per round, and the share of each part that is counted.

    The first round reads the prompt as well: a request for one token measures it, and is taken off.
    """
    request = workload.request
    decoder.generate([workload.ids[0]], **request)
    decoder.generate([workload.ids[0]], **{**request, "max_new_tokens": 1})
    spent, tokens, forwards, parts = [], 0, 0, dict[str, float]()
    for ids in workload.ids:
        first = clock(decoder, ids, {**request, "max_new_tokens": 1})[0]
        seconds, answer = clock(decoder, ids, request)
        done = answer.statistics
        if done.forwards < 2:
            continue
        spent.append((seconds - first) / (done.forwards - 1))
        tokens, forwards = tokens + done.tokens, forwards + done.forwards
        parts = {name: parts.get(name, 0.0) + value for name, value in done.seconds.items()}
    total = parts.pop("total")
    return median(spent), tokens / forwards, {name: value / total for name, value in parts.items()}


def clock(decoder: Decoder, ids: list[int], request: dict[str, Any]) -> tuple[float, Any]:
    """Seconds and the answer of one request."""
    synchronise()
    started = perf_counter()
    answer = decoder.generate([ids], **request)[0]
    synchronise()
    return perf_counter() - started, answer


if __name__ == "__main__":
    command(main)
