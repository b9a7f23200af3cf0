"""Where the time of rounds goes, in batches as well: drafting, verification, judging, and what is none of them.

    python -m benchmarks.rounds [--prompts 32] [--batches 1,8] [--engines eager,compiled] [--methods NAME,...]
        [--max-new-tokens 64] [--results FOLDER]

In the folder of a finished run. `draft`, `verify`, `accept` and `rest` are shares of the seconds of all rounds, and
`outside` is the share of the whole request that lies in no round: admitting prompts and handing out answers. The
compiled engine judges within its verification, so that its `accept` is 0, and reads prompts before its first round;
that time counts as drafting and verification, as on the eager engine. Everything decodes a batch before the next batch
begins. `vs_eager` is how many times as many tokens per second a method writes as on the eager engine. `warm_up` is
what came before, building of programs included, in seconds. Intervals are over batches. An interrupted measurement of
the same code goes on with the next batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.batches import batches_of
from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts, names
from benchmarks.drafting_figures import PARTS
from benchmarks.limit import cases_of
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.choice import ENGINES
from gistgate.files import fingerprint, read_json, write_json
from gistgate.observing.intervals import Columns, over_prompts
from gistgate.request.statistics import total
from pipeline.common.code import made_by
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH
from pipeline.common.progress import bar
from pipeline.speed.clock import Prompts, check_engine, synchronise

WALL = "wall"
"""Seconds of a batch from its prompts to its answers."""
EAGER = "eager"
WARM_UP = "warm-up.json"
Case = tuple[str, str]
"""An engine and a method."""


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
    asked, wanted = counts(batches, "--batches"), names(engines, ENGINES, "is no engine")
    workload = Workload.load(prompts)
    sizes = {str(size): batches_of(workload.ids, size, "--batches") for size in asked}
    cases = cases_of(workload, methods)
    request = {**workload.request, "max_new_tokens": min(max_new_tokens, workload.request["max_new_tokens"])}
    points = {name: point.as_dict() for name, point in workload.points.items()}
    form = [
        made_by("benchmarks.rounds"),
        workload.identity(workload.points.values()),
        sorted(request.items(), key=str),
        points,
    ]
    found: dict[str, Any] = {engine: {} for engine in wanted}
    folders: list[Path] = []
    for size, some in sizes.items():
        field = {(engine, name): make(engine) for name, make in cases.items() for engine in wanted}
        folder = SCRATCH / f"rounds/{fingerprint(*form, [label(case) for case in field], some)}"
        folders.append(folder)
        for (engine, name), seen in profiles(field, measured(field, some, request, folder)).items():
            found[engine].setdefault(size, {})[name] = seen
            shown = {part: round(share["mean"], 3) for part, share in seen["shares"].items()}
            print(engine, size, name, shown, flush=True)
    about = {"pair": workload.pair.name, "max_new_tokens": request["max_new_tokens"]}
    save("rounds", {**about, "engines": found}, results)
    for finished in folders:  # a later run measures anew
        shutil.rmtree(finished, ignore_errors=True)


def measured(
    field: Mapping[Case, Decoder], batches: Sequence[Prompts], request: dict[str, Any], folder: Path
) -> list[dict[str, dict[str, float]]]:
    """What every case spent on every batch, by its label; finished batches are read from `folder`."""
    paths = [folder / f"batch-{place:04d}.json" for place in range(len(batches))]
    missing = [place for place, path in enumerate(paths) if not path.exists()]
    if missing:
        spent = {
            label(case): warmed(decoder, [batches[place] for place in missing], request)
            for case, decoder in field.items()
        }
        for decoder in field.values():
            check_engine(decoder)
        if not (folder / WARM_UP).exists():  # a later start finds what the first one compiled
            write_json(folder / WARM_UP, spent)
    cases = list(field)
    for place in bar(missing, title="rounds", unit="batch"):
        first = place % len(cases)  # everybody begins equally often
        turns = [*cases[first:], *cases[:first]]
        write_json(paths[place], {label(case): decoded(field[case], batches[place], request) for case in turns})
    warm_up = read_json(folder / WARM_UP)
    return [{name: {**one, "warm_up": warm_up[name]} for name, one in read_json(path).items()} for path in paths]


def warmed(decoder: Decoder, batches: Sequence[Prompts], request: dict[str, Any]) -> float:
    """Seconds of a first call; the compiled engine decodes all batches, since longer prompts need other programs."""
    started = perf_counter()
    for batch in batches if decoder.engine.name == "compiled" else batches[:1]:
        decoder.generate(batch, **request)
    return perf_counter() - started


def decoded(decoder: Decoder, batch: Prompts, request: dict[str, Any]) -> dict[str, float]:
    """Seconds, tokens and rounds of one batch."""
    synchronise()
    started = perf_counter()
    answers = decoder.generate(batch, **request)
    synchronise()
    wall = perf_counter() - started
    counted = total([answer.statistics for answer in answers])
    seconds = {name: counted.seconds.get(name, 0.0) for name in (*PARTS, "total")}
    return {**seconds, WALL: wall, "tokens": counted.tokens, "forwards": counted.forwards}


def profiles(field: Mapping[Case, Decoder], batches: list[dict[str, dict[str, float]]]) -> dict[Case, dict[str, Any]]:
    """What is published of every case."""
    found = {}
    for case, decoder in field.items():
        columns = columns_of(case, batches)
        shares = {name: one.as_dict() for name, one in over_prompts(shares_of, columns).items()}
        tau, warm_up = sum(columns["tokens"]) / sum(columns["forwards"]), columns["warm_up"][0]
        found[case] = {"block": decoder.block, "tau": tau, "n": len(batches), "warm_up": warm_up, "shares": shares}
        if case[0] != EAGER and (EAGER, case[1]) in field:
            other = {f"other_{name}": column for name, column in columns_of((EAGER, case[1]), batches).items()}
            found[case]["vs_eager"] = over_prompts(vs_eager, {**columns, **other})[""].as_dict()
    return found


def columns_of(case: Case, batches: list[dict[str, dict[str, float]]]) -> dict[str, list[float]]:
    """What a case spent, batch by batch."""
    name = label(case)
    return {key: [batch[name][key] for batch in batches] for key in batches[0][name]}


def label(case: Case) -> str:
    """A case as a key of JSON."""
    return ": ".join(case)


def vs_eager(columns: Columns) -> dict[str, Tensor]:
    """Tokens per second in those of the `other_` columns."""
    rates = [columns[f"{who}tokens"].sum(-1) / columns[f"{who}{WALL}"].sum(-1) for who in ("", "other_")]
    return {"": rates[0] / rates[1]}


def shares_of(columns: Columns) -> dict[str, Tensor]:
    """Shares of the parts in all rounds, and of what lies outside them in the whole."""
    spent = {name: columns[name].sum(-1) for name in (*PARTS, "total", WALL)}
    found = {name: spent[name] / spent["total"] for name in PARTS}
    rest = 1 - torch.stack(list(found.values())).sum(0)
    return {**found, "rest": rest, "outside": 1 - spent["total"] / spent[WALL]}


if __name__ == "__main__":
    run(main)
