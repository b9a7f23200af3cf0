"""How much of what speculative decoding could give arrives: measured parts against whole rounds.

    python -m benchmarks.limit [--prompts 20] [--methods NAME,...] [--engines eager,compiled] [--results FOLDER]

In the folder of a finished run, batch 1. c is one draft step in target steps, v the verification of K + 1 tokens in
target steps, both of the same engine; with tau tokens per round, decoding can be tau / (v + K c) times as fast as
plain steps are. `reached` is the share of that which whole rounds, host included, attain. All are of medians over
prompts, of a prompt's own medians; `intervals` holds each with its 90 % bootstrap interval over prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import RESULTS, save
from benchmarks.counts import names
from benchmarks.parts import DraftStep, Forward, Verification, bandwidth, once, warm
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.choice import ENGINES
from gistgate.observing.intervals import Columns, over_prompts
from pipeline.common.entry import run
from pipeline.speed.clock import check_engine, synchronise

TURN = (
    ("step", False),
    ("step", True),
    ("verify", False),
    ("draft", True),
    ("verify", True),
    ("judged", False),
    ("draft", False),
    ("judged", True),
)
"""Parts in the order of their calls, and which calls count: each behind what precedes it in a round, and a draft after
its own last call, so that all find the processor's caches alike."""


def main(
    prompts: int = 20,
    calls: int = 6,
    methods: str = "",
    engines: str = "eager,compiled",
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    wanted, workload = names(engines, ENGINES, "is no engine"), Workload.load(prompts)
    cases, found = cases_of(workload, methods), dict[str, Any]()
    for engine in wanted:
        found[engine] = {}
        for name, make in cases.items():
            found[engine][name] = limit(workload, make(engine), calls)
            shown = {key: round(value, 3) for key, value in found[engine][name].items() if key != "intervals"}
            print(engine, name, shown, flush=True)
    payload = {"pair": workload.pair.name, "engines": found}
    save("limit", payload, results, lambda: figure(payload))


def cases_of(workload: Workload, methods: str) -> dict[str, Callable[[str], Decoder]]:
    """Strict decoding at its own K and these methods, else the chosen ones, each made for an engine.

    Raises:
        UserError: a method is not certified here.
    """
    taken = names(methods, workload.points, "is not certified here") if methods else chosen(workload)
    own = workload.params.decoding.strict_block
    cases: dict[str, Callable[[str], Decoder]] = {f"strict K={own}": lambda engine: workload.strict(own, engine)}
    return cases | {name: lambda engine, name=name: workload.method(name, engine) for name in taken}


def chosen(workload: Workload) -> list[str]:
    """The learned method and the best rule without a gate, as far as they are certified."""
    free = [name for name, point in workload.points.items() if point.head is None]
    return [*workload.headline, *[name for name in ("ensemble", "fly") if name in free][:1]]


def limit(workload: Workload, decoder: Decoder, calls: int) -> dict[str, Any]:
    """Parts and whole of one decoder, in target steps and shares, prompt by prompt beside each other."""
    num, engine, pair = decoder.block, decoder.engine.name, workload.pair
    parts: dict[str, Any] = {
        "step": Forward(pair.target, 1),
        "verify": Forward(pair.target, num + 1),
        "draft": DraftStep(pair.draft_model, num),
    }
    if engine == "compiled":  # eager rounds count their share of judging themselves
        parts["judged"] = Verification(decoder, workload.request)
    running = {name: warm(part, engine) for name, part in parts.items()}
    columns, shares = rounds(workload, decoder, running, calls)
    found = {name: one.as_dict() for name, one in over_prompts(partial(figures_of, num), columns).items()}
    return {
        "block": num,
        **{name: one["mean"] for name, one in found.items()},
        **{f"share_{part}": share for part, share in shares.items()},
        **bandwidth(pair.target, found["target_step_ms"]["mean"] / 1000),
        "intervals": found,
    }


def figures_of(num: int, columns: Columns) -> dict[str, Tensor]:
    """What the seconds, tokens and forwards of prompts say about rounds of K = `num`."""
    sums = ("tokens", "forwards")
    spent = {name: column.quantile(0.5, dim=-1) for name, column in columns.items() if name not in sums}
    tau, ideal = columns["tokens"].sum(-1) / columns["forwards"].sum(-1), spent["verify"] + spent["draft"]
    found = {
        "target_step_ms": 1000 * spent["step"],
        "c": spent["draft"] / num / spent["step"],
        "v": spent["verify"] / spent["step"],
        "tau": tau,
        "round_ms": 1000 * spent["round"],
        "possible": tau * spent["step"] / ideal,
        "attained": tau * spent["step"] / spent["round"],
        "reached": ideal / spent["round"],
    }
    if "judged" in spent:
        found["judging"] = (spent["judged"] - spent["verify"]) / spent["round"]
    return found


def rounds(
    workload: Workload, decoder: Decoder, running: dict[str, Callable[[], object]], calls: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """For every prompt the seconds of a round and of each of `running`, tokens and forwards; the counted parts' shares.

    The first round reads the prompt as well: a request for one token measures it, and is taken off.
    """
    request = workload.request
    # The compiled engine builds programs for longer prompts, too.
    for ids in workload.ids if decoder.engine.name == "compiled" else workload.ids[:1]:
        decoder.generate([ids], **request)
        decoder.generate([ids], **{**request, "max_new_tokens": 1})
    check_engine(decoder)
    columns: dict[str, list[float]] = {name: [] for name in (*running, "round", "tokens", "forwards")}
    counted: dict[str, float] = {}
    for ids in workload.ids:
        alone: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(calls):  # a busy moment of the machine meets all parts
            for name, counts in TURN:
                if name in running:
                    seconds = once(running[name])
                    alone[name] += [seconds] * counts
        first = clock(decoder, ids, {**request, "max_new_tokens": 1})[0]
        seconds, answer = clock(decoder, ids, request)
        done = answer.statistics
        if done.forwards < 2:
            continue
        measured = {name: median(spent) for name, spent in alone.items()}
        measured |= {"round": (seconds - first) / (done.forwards - 1), "tokens": done.tokens, "forwards": done.forwards}
        for name, value in measured.items():
            columns[name].append(value)
        counted = {name: counted.get(name, 0.0) + value for name, value in done.seconds.items()}
    total = counted.pop("total")
    return columns, {name: value / total for name, value in counted.items()}


def clock(decoder: Decoder, ids: list[int], request: dict[str, Any]) -> tuple[float, Any]:
    """Seconds and the answer of one request."""
    synchronise()
    started = perf_counter()
    answer = decoder.generate([ids], **request)[0]
    synchronise()
    return perf_counter() - started, answer


def figure(payload: dict[str, Any]) -> Any:
    """Drawn only where matplotlib is installed."""
    from benchmarks.figures import limit_figure

    return limit_figure(payload)


if __name__ == "__main__":
    run(main, kept=False)
