"""Where the time of rounds goes, in batches as well: drafting, verification, judging, and what is none of them.

    python -m benchmarks.rounds [--prompts 32] [--batches 1,8] [--engines eager,compiled] [--methods NAME,...]
        [--max-new-tokens 64] [--results FOLDER]

In the folder of a finished run. `draft`, `verify`, `accept` and `rest` are shares of the seconds of all rounds, and
`outside` is the share of the whole request that lies in no round: admitting prompts and handing out answers. The
compiled engine judges within its verification, so that its `accept` is 0. `warm_up` is what it took before, building of
programs included, in seconds. Intervals are over batches. An interrupted measurement of the same code goes on with the
next case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench import RESULTS, save
from benchmarks.drafting import batches_of
from benchmarks.drafting_figures import PARTS
from benchmarks.limit import chosen
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json
from gistgate.observing.intervals import Columns, over_prompts
from gistgate.request.statistics import total
from pipeline.common.code import made_by
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH
from pipeline.speed.clock import Prompts, check_engine, synchronise

WALL = "wall"
"""Seconds of a batch from its prompts to its answers."""


def main(
    prompts: int = 32,
    batches: str = "1,8",
    engines: str = "eager,compiled",
    methods: str = "",
    max_new_tokens: int = 64,
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    workload = Workload.load(prompts)
    sizes = {size: batches_of(workload.ids, int(size)) for size in batches.split(",")}
    cases = cases_of(workload, methods.split(",") if methods else chosen(workload))
    request = {**workload.request, "max_new_tokens": min(max_new_tokens, workload.request["max_new_tokens"])}
    points = {name: point.as_dict() for name, point in workload.points.items()}
    form = [made_by("benchmarks.rounds"), workload.pair.name, sorted(request.items(), key=str), threads, points]
    found: dict[str, Any] = {}
    for engine in engines.split(","):
        for size, some in sizes.items():
            for name, make in cases.items():
                path = SCRATCH / f"rounds/{fingerprint(*form, engine, name, some)}.json"
                if not path.exists():
                    write_json(path, profile(make(engine), some, request))
                seen = read_json(path)
                found.setdefault(engine, {}).setdefault(size, {})[name] = seen
                shown = {part: round(share["mean"], 3) for part, share in seen["shares"].items()}
                print(engine, size, name, shown, flush=True)
    about = {"pair": workload.pair.name, "max_new_tokens": request["max_new_tokens"]}
    save("rounds", {**about, "engines": found}, results)


def cases_of(workload: Workload, names: list[str]) -> dict[str, Callable[[str], Decoder]]:
    """Strict decoding at its own K and these methods, each made for an engine.

    Raises:
        UserError: a method is not certified here.
    """
    if unknown := [name for name in names if name not in workload.points]:
        raise UserError(f"'{unknown[0]}' is not certified here. Known: {', '.join(workload.points)}.")
    own = workload.params.decoding.strict_block
    cases: dict[str, Callable[[str], Decoder]] = {f"strict K={own}": lambda engine: workload.strict(own, engine)}
    return cases | {name: lambda engine, name=name: workload.method(name, engine) for name in names}


def profile(decoder: Decoder, batches: list[Prompts], request: dict[str, Any]) -> dict[str, Any]:
    """Shares of a decoder's seconds with their intervals, its mean accepted length and the number of batches."""
    started = perf_counter()
    for batch in (
        batches if decoder.engine.name == "compiled" else batches[:1]
    ):  # longer prompts need their own programs
        decoder.generate(batch, **request)
    warm_up = perf_counter() - started
    columns: dict[str, list[float]] = {name: [] for name in (*PARTS, "total", WALL)}
    tokens = forwards = 0
    for batch in batches:
        synchronise()
        started = perf_counter()
        answers = decoder.generate(batch, **request)
        synchronise()
        columns[WALL].append(perf_counter() - started)
        counted = total([answer.statistics for answer in answers])
        tokens, forwards = tokens + counted.tokens, forwards + counted.forwards
        for name in (*PARTS, "total"):
            columns[name].append(counted.seconds.get(name, 0.0))
    check_engine(decoder)
    shares = {name: one.as_dict() for name, one in over_prompts(shares_of, columns).items()}
    return {"block": decoder.block, "tau": tokens / forwards, "n": len(batches), "warm_up": warm_up, "shares": shares}


def shares_of(columns: Columns) -> dict[str, Tensor]:
    """Shares of the parts in all rounds, and of what lies outside them in the whole."""
    spent = {name: column.sum(-1) for name, column in columns.items()}
    found = {name: spent[name] / spent["total"] for name in PARTS}
    rest = 1 - torch.stack(list(found.values())).sum(0)
    return {**found, "rest": rest, "outside": 1 - spent["total"] / spent[WALL]}


if __name__ == "__main__":
    run(main)
