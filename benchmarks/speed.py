"""Tokens per second of every decoding, side by side in one run.

    python -m benchmarks.speed [--prompts 100] [--batches 1,4,16,32] [--methods NAME,...] [--results FOLDER] [--again]

In the folder of a finished run. Batch 1: transformers' `generate`, with a compiled static cache, assisted by the draft
and with prompt lookup, each at its best K (`pipeline/speed/baselines.py`); ours plain, strict and every certified
method, each on both engines. Larger batches: what transformers can do in batches, ours plain, strict and the learned
method; each of them row by row as well, on the same prompts and in turn with the batches: `vs_batch_1`. No prompt comes
twice at one size, which has to fill four batches. A method runs at its own K where `make speed` certified it there; the
looks behind these certificates enter the ledger of published looks before anything is timed. `--again` measures the
same on another occasion, at the K that the first one chose: results keep every occasion, and intervals cover all of
them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.batches import batches_of as full_batches
from benchmarks.bench import RESULTS, device_kind, ratios, save, side_by_side
from benchmarks.counts import counts, names
from benchmarks.speed_occasions import all_batches, earlier_occasions
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.choice import ENGINES
from gistgate.files import fingerprint
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.code import made_by, running
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.common.operating_point import OWN_REPORTS, REPORTS
from pipeline.speed import baselines
from pipeline.speed.clock import Contender, Prompts, compiled, machine, ours, theirs
from pipeline.speed.race import working

REFERENCES = ("plain-compiled", "strict-compiled", "plain-eager", "strict-eager", "generate", "assisted")
BATCHES = 4
"""Fewest batches of a size: intervals are over batches."""
SINGLY = "row by row: "


def main(
    prompts: int = 100,
    batches: str = "1,4,16,32",
    methods: str = "",
    threads: int = 1,
    results: Path = RESULTS,
    again: bool = False,
) -> None:
    torch.set_num_threads(threads)
    sizes, path = counts(batches, "--batches"), results / f"speed-{device_kind()}.json"
    workload = Workload.load(max(prompts, BATCHES * max(sizes)))
    chosen = names(methods, workload.own, "is not certified here") if methods else list(workload.own)
    development = [prompt["ids"] for prompt in read_prompts("development")[: workload.params.benchmark.development]]
    settings = settings_of(workload, chosen, {str(size): batches_of(workload.ids, size, prompts) for size in sizes})
    settings["development"] = fingerprint(development)
    earlier = earlier_occasions(path, settings) if again else {"prompts": {}, "occasions": [], "chosen": {}}
    if results == RESULTS:
        enter_looks(chosen, path)
    blocks, refused = earlier["chosen"], {}
    if 1 in sizes and not blocks:  # transformers assists one row at a time
        blocks, refused = baselines.chosen(workload.pair, workload.request, development)
    found = {str(size): measure(workload, size, prompts, chosen, blocks) for size in sizes}
    if refused:
        found["1"]["failed"].update(refused)
    occasions = [*earlier["occasions"], found]
    payload = {
        **settings,
        "prompts": {**earlier["prompts"], **settings["prompts"]},
        "chosen": blocks,
        "occasions": occasions,
        "batches": all_batches(occasions),
    }
    save("speed", payload, results, lambda: figure(payload))


def enter_looks(methods: Collection[str], where: Path) -> None:
    """Enter the looks behind what is timed into the published ledger: all at methods' own K, and those at the common K.

    Raises:
        UserError: a calibration has no record of its look, or its prompts were published with another choice.
    """
    from pipeline.report.looks import publish_looks  # here, because it needs scipy and timing does not

    publish_looks(OWN_REPORTS, where)
    for reports in (REPORTS, REPORTS / "table"):
        publish_looks(reports / "calibration", where, methods=methods)


def settings_of(workload: Workload, methods: list[str], batches: dict[str, Any]) -> dict[str, Any]:
    """What two occasions have to have in common."""
    return {
        "pair": workload.pair.name,
        "strict_block": workload.params.decoding.strict_block,
        "points": {name: {**workload.own[name].as_dict(), **workload.certificate(name)} for name in methods},
        "prompts": {size: fingerprint(batch, sorted(workload.request.items())) for size, batch in batches.items()},
        "machine": machine(),
        "code": made_by(running()),
    }


def measure(workload: Workload, size: int, prompts: int, methods: list[str], blocks: dict[str, int]) -> dict[str, Any]:
    """One batch size: every contender on equal batches of prompts."""
    print(f"batch {size}")
    batches, field = batches_of(workload.ids, size, prompts), contenders(workload, size, methods, blocks)
    able, failed = working(field if size == 1 else [*field, *map(row_by_row, field)], batches[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = side_by_side(able, batches)
    return {"contenders": against_rows(times), "failed": failed}


def batches_of(ids: list[list[int]], size: int, prompts: int) -> list[list[list[int]]]:
    """Batches of about `prompts` prompts, but at least `BATCHES`; a prompt that came twice would count as two.

    Raises:
        UserError: there are too few prompts for them.
    """
    return full_batches(ids, size, "--batches", BATCHES)[: max(prompts // size, BATCHES)]


def row_by_row(contender: Contender) -> Contender:
    """The same, one row of a batch after the other."""

    def decode(batch: Prompts) -> tuple[list[list[int]], int | None]:
        return [contender.decode([ids])[0][0] for ids in batch], None

    return replace(contender, name=SINGLY + contender.name, decode=decode)


def against_rows(times: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rates and ratios of the contenders, with how many times faster a batch is than its rows one by one."""
    batched = {name: entry for name, entry in times.items() if not name.startswith(SINGLY)}
    found = ratios(batched, REFERENCES)
    for name, entry in batched.items():
        if (rows := times.get(SINGLY + name)) is not None:
            found[name]["vs_batch_1"] = ratio_of_sums(rows["seconds"], entry["seconds"]).as_dict()
    return found


def contenders(workload: Workload, size: int, methods: list[str], blocks: dict[str, int]) -> list[Contender]:
    """Everything that is timed at one batch size; `blocks` has the K of transformers' speculation."""
    pair, request, own = workload.pair, workload.request, workload.params.decoding.strict_block
    slots = max(map(len, workload.ids)) + request["max_new_tokens"]
    field = [
        Contender("generate", theirs(pair, request), 0),
        Contender("generate-static-compiled", compiled(theirs(pair, request), pair, slots), 0),
    ]
    if size == 1:
        field += baselines.at(pair, request, blocks)
    for engine in ENGINES:
        field.append(timed(f"plain-{engine}", workload.plain(engine), request))
        field.append(timed(f"strict-{engine}", workload.strict(own, engine), request))
        chosen = methods if size == 1 else workload.headline
        field += [timed(f"{name}-{engine}", workload.at(workload.own[name], engine), request) for name in chosen]
    return field


def timed(name: str, decoder: Decoder, request: dict[str, Any]) -> Contender:
    """One of ours."""
    return Contender(name, ours(decoder, request), decoder.block, builds=decoder.engine.name == "compiled")


def figure(payload: dict[str, Any]) -> Any:
    """Tokens per second at batch 1, best first, and by batch size."""
    from matplotlib import pyplot as plt

    from pipeline.report.figures import STYLE

    with plt.rc_context(STYLE):
        drawn, (left, right) = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
        first = next(iter(payload["batches"].values()))["contenders"]
        rates = sorted((entry["tokens_per_second"], name) for name, entry in first.items())
        left.barh([name for _, name in rates], [rate for rate, _ in rates], color="C0")
        left.tick_params(axis="y", labelsize=7)
        left.set_xlabel(f"tokens per second, batch {next(iter(payload['batches']))}")
        last = list(payload["batches"].values())[-1]["contenders"]
        for name in last:
            sizes = [size for size, entry in payload["batches"].items() if name in entry["contenders"]]
            values = [payload["batches"][size]["contenders"][name]["tokens_per_second"] for size in sizes]
            right.plot([int(size) for size in sizes], values, marker="o", ms=3, label=name)
        right.set_xscale("log", base=2)
        right.set_xlabel("batch")
        right.set_ylabel("tokens per second")
        right.legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    run(main, kept=False)
