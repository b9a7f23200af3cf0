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

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pipeline.run.code import made_by, running, write_result
from pipeline.studies.speed.params import FILE, speed_params

from benchmarks.batches import batches_of as full_batches
from benchmarks.counts import counts, names
from benchmarks.speed_occasions import all_batches, earlier_occasions
from gistgate.core.decoder import ENGINES, Decoder
from gistgate.core.files import fingerprint, read_json
from gistgate.core.utils import UserError
from gistgate.measure import speed as baselines
from gistgate.measure.speed import Contender, Prompts, Times, compiled, machine, ours, race, theirs, working
from gistgate.measure.statistics import ratio_of_sums_intervals as ratio_of_sums
from pipeline.decode import (
    OWN_REPORTS,
    REPORTS,
    Operating,
    calibration_file,
    gate_folder,
    load_gate,
    make_decoder,
    operating_point,
    read_prompts,
    request_of,
)
from pipeline.outcomes import maker_of
from pipeline.pair.pair import Pair, load_pair
from pipeline.methods import MethodParams
from pipeline.params import Params, read_params, table_params
from pipeline.paths import BENCHMARK_RESULTS
from pipeline.run import run

# ---- What every benchmark shares: rounds side by side, ratios with intervals, one folder of results.


RESULTS = BENCHMARK_RESULTS


def device_kind() -> str:
    """cpu or gpu: the ending of a result's name."""
    return "gpu" if torch.cuda.is_available() else "cpu"


def side_by_side(field: Sequence[Contender], batches: Sequence[Prompts], say: bool = True) -> Times:
    """The race of all contenders, with the seconds of every batch in a flat list."""
    times = flat(race(field, batches))
    if say:
        for name, entry in times.items():
            print(f"{name:28} {sum(entry['tokens']) / sum(entry['seconds']):8.1f} tokens per second", flush=True)
    return times


def flat(times: Times) -> Times:
    """Times of one repeat, with one number of seconds for each batch."""
    return {name: {**entry, "seconds": [seconds for (seconds,) in entry["seconds"]]} for name, entry in times.items()}


def ratios(times: Mapping[str, Mapping[str, Any]], references: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tokens per second of every contender, and how many times faster than each reference it is, with 90 % intervals.

    Summed seconds over equal prompts; a contender that answers otherwise is measured on its own answers.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, entry in times.items():
        rate = sum(entry["tokens"]) / sum(entry["seconds"])
        num = {"n": len(entry["seconds"]), "loops": entry["loops"]}
        found[name] = {"block": entry["block"], "tokens_per_second": rate, **num}
        for reference in references:
            if reference in times and reference != name:
                interval = ratio_of_sums(times[reference]["seconds"], entry["seconds"])
                found[name][f"vs_{reference}"] = interval.as_dict()
    return found


def apart(
    module: str, arguments: Sequence[Any], variables: Mapping[str, str], without: Sequence[str] = ()
) -> dict[str, Any]:
    """What a process of its own prints as the last line, a JSON object.

    Args:
        module: what it runs.
        arguments: of its command line.
        variables: of its environment, besides those of this process.
        without: names of variables that it does not take over.

    Raises:
        UserError: it failed.
    """
    own = {name: value for name, value in os.environ.items() if name not in without} | {**variables}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    ran = subprocess.run(command, env=own, capture_output=True, text=True)
    if ran.returncode:
        raise UserError(f"A process of the measurement failed: {ran.stderr[-500:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def save(name: str, payload: Mapping[str, Any], results: Path, figure: Callable[[], Any] | None = None) -> Path:
    """Write `<name>-<cpu|gpu>.json` with the machine, and its figure where matplotlib is installed."""
    path = results / f"{name}-{device_kind()}.json"
    drawn = []
    if figure is not None:
        try:
            from pipeline.report.figures import save as save_figure
        except ImportError:
            print("No figure: matplotlib is not installed.")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_figure(figure(), path.with_suffix(".png"))
            drawn = [path.with_suffix(".png")]
    write_result(path, {**payload, "machine": machine()}, running(), files=drawn)
    print(f"Written: {path}")
    return path


# ---- What a finished run offers to benchmarks: its pair, its test prompts, and every certified method.


PROOF = ("confidence", "n", "losses", "gains", "bound", "bound_kind")
"""What a certificate rests on."""


@dataclass(frozen=True)
class Workload:
    """Pair, prompts and methods."""

    params: Params
    pair: Pair
    prompts: list[dict[str, Any]]

    @classmethod
    def load(cls, num_prompts: int, split: str = "test", pair: str | None = None, skip: int = 0) -> Workload:
        """Prompts of a split of the run in this folder: choices belong to `development`, claims to `test`.

        Args:
            num_prompts: at most so many.
            split: development or test.
            pair: name of another pair with the same target; default: the run's own.
            skip: so many of the first prompts are left out.

        Raises:
            UserError: it has no prompts, or its pair cannot be loaded.
        """
        params = read_params()
        if not Path("data/prompts/test.jsonl").exists():
            raise UserError("This folder has no data/prompts/test.jsonl. Run `make repro` here first.")
        prompts = read_prompts(split)
        if num_prompts and skip >= len(prompts):
            remedy = f"Lower --skip {skip}." if skip else "Run the stage `prompts` again."
            raise UserError(f"There are {len(prompts)} {split} prompts, so that none is left. {remedy}")
        loaded = load_pair(params if pair is None else replace(params, pair=pair))
        return cls(table_params(params), loaded, prompts[skip : skip + num_prompts])

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of every prompt."""
        return [prompt["ids"] for prompt in self.prompts]

    @cached_property
    def request(self) -> dict[str, Any]:
        """Arguments of `Decoder.generate` that all prompts share."""
        return request_of(self.prompts, self.pair)

    def identity(self, points: Iterable[Operating]) -> str:
        """Fingerprint of what is measured and where: the machine, the pair's weights, and the gates of these points.

        What an interrupted measurement left is only taken up by one with the same.
        """
        heads = sorted({point.head for point in points if point.head})
        return fingerprint(machine(), maker_of(self.pair), *map(gate_folder, heads))

    @cached_property
    def points(self) -> dict[str, Operating]:
        """Methods that run loosely with a certificate for the headline budget, by name."""
        return certified_points(self.params)

    @cached_property
    def own(self) -> dict[str, Operating]:
        """The same methods, each at its own K where it is certified there.

        Raises:
            UserError: a method was calibrated at another K than params.yaml now says.
        """
        params, found = speed_params(self.params), dict(self.points)
        for name in params.methods:
            path = calibration_file(params, name, OWN_REPORTS)
            if not path.exists():
                continue
            block, own = read_json(path)["block"], params.block_of(name)
            if block != own:
                raise UserError(f"{path} is about K = {block}, but {FILE} says {own}. Run `make speed` again.")
            point = operating_point(params, name, reports=OWN_REPORTS)
            if point.certified:
                found[name] = point
        return found

    def certificate(self, name: str) -> dict[str, Any]:
        """The prompts, losses, gains and bound behind a method of `own`."""
        for params, reports in ((speed_params(self.params), OWN_REPORTS), (self.params, REPORTS)):
            if name not in params.methods or not calibration_file(params, name, reports).exists():
                continue
            if operating_point(params, name, reports=reports) == self.own[name]:
                verdicts = read_json(calibration_file(params, name, reports))["budgets"]
                found = next(one for budget, one in verdicts.items() if float(budget) == self.own[name].budget)
                return {key: found[key] for key in PROOF}
        raise UserError(f"No calibration of '{name}' is left. Run `make speed` again.")

    @cached_property
    def headline(self) -> list[str]:
        """The learned method that is certified at the common K; empty where there is none, which a sentence says."""
        found = [name for name, point in self.points.items() if point.head is not None][:1]
        if not found:
            print("No learned method is certified here at the common K, so that none is measured.")
        return found

    def plain(self, engine: str) -> Decoder:
        """The target alone."""
        return make_decoder(self.pair, MethodParams("exact", drafter="none"), {}, 0, engine=engine)

    def strict(self, block: int, engine: str) -> Decoder:
        """Lossless decoding with the draft model."""
        return make_decoder(self.pair, MethodParams("exact"), {}, block, engine=engine)

    def method(self, name: str, engine: str, block: int | None = None) -> Decoder:
        """A certified method, at the common K unless another is given."""
        return self.at(self.points[name] if block is None else replace(self.points[name], block=block), engine)

    def at(self, point: Operating, engine: str) -> Decoder:
        """A method at one of its points."""
        gate = load_gate(point.head, self.pair) if point.head else None
        return make_decoder(self.pair, point.as_method(), point.settings, point.block, gate=gate, engine=engine)


def certified_points(params: Params) -> dict[str, Operating]:
    """Methods that run loosely with a certificate for the headline budget, by name."""
    names = [name for name in params.methods if calibration_file(params, name).exists()]
    found = {name: operating_point(params, name) for name in names}
    return {name: point for name, point in found.items() if point.certified and point.rule != "exact"}


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
    from pipeline.report.summary.looks import publish_looks  # here, because it needs scipy and timing does not

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
