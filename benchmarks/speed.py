"""Tokens per second of every decoding, side by side in one process, in the folder of a finished
run.

python -m benchmarks.speed [--prompts 100] [--batches 1,4,16,32] [--methods NAME,...] [--engines
eager,compiled]
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gistgate import __version__
from gistgate.core.decoder import ENGINES
from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError, nearest
from gistgate.measure import baselines, speed
from gistgate.measure.statistics import ratio_of_sums
from pipeline.operating import Operating, operating_point
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.paths import calibration_file, prompts_of
from pipeline.run import run
from pipeline.stages.benchmark import generates, ours, slots_of
from pipeline.task import read_prompts, request_of

RESULTS = Path("benchmarks/results")
PROOF = ("confidence", "n", "losses", "gains", "bound", "bound_kind")  # what a certificate rests on
LEAST = 4  # fewest batches of a size: intervals are over batches
SINGLY = "row by row: "


@dataclass(frozen=True)
class Workload:
    """Pair, test prompts and certified methods of the finished run in this folder."""

    params: Params
    pair: Pair
    prompts: list[dict[str, Any]]

    @classmethod
    def load(cls, num_prompts: int | None = None) -> Workload:
        """With the first test prompts, or all of them."""
        params = read_params()
        if not prompts_of("test").exists():
            raise UserError(
                f"This folder has no {prompts_of('test')}. Run `make repro` here first."
            )
        return cls(params, load_pair(params), read_prompts("test")[:num_prompts])

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of every prompt."""
        return [prompt["ids"] for prompt in self.prompts]

    @cached_property
    def request(self) -> dict[str, Any]:
        """Arguments of `Decoder.generate` that all prompts share."""
        return request_of(self.prompts, self.pair)

    @cached_property
    def points(self) -> dict[str, Operating]:
        """Methods that run loosely with a certificate for the headline budget, by name."""
        names = [name for name in self.params.methods if calibration_file(name).exists()]
        found = {name: operating_point(self.params, name) for name in names}
        return {
            name: point
            for name, point in found.items()
            if point.certified and point.rule != "exact"
        }

    def proof(self, name: str) -> dict[str, Any]:
        """A certified method at its setting, with the prompts, losses, gains and bound behind
        it.
        """
        point = self.points[name]
        budgets = read_json(calibration_file(name))["budgets"]
        verdict = next(one for budget, one in budgets.items() if float(budget) == point.budget)
        return {**asdict(point), **{key: verdict[key] for key in PROOF}}


def counts(text: str, option: str) -> list[int]:
    """The numbers of a list with commas."""
    entries = [one.strip() for one in text.split(",")]
    if bad := [one for one in entries if not one.isdecimal() or not int(one)]:
        raise UserError(
            f"'{bad[0]}' in {option} is no positive whole number. Pass numbers such as 8,16."
        )
    return [int(one) for one in entries]


def names(text: str, known: Collection[str], refusal: str) -> list[str]:
    """The names of a list with commas; `refusal` says of any other name what it is not."""
    entries = [one.strip() for one in text.split(",")]
    if unknown := [one for one in entries if one not in known]:
        raise UserError(f"'{unknown[0]}' {refusal}. {nearest(unknown[0], known)}")
    return entries


def save(name: str, payload: Mapping[str, Any], results: Path) -> None:
    """Write `<name>-<cpu|gpu>.json` with the machine and the version of this library."""
    path = results / f"{name}-{'gpu' if torch.cuda.is_available() else 'cpu'}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**payload, "machine": speed.machine(), "version": __version__})
    print(f"Written: {path}")


def main(
    prompts: int = 100,
    batches: str = "1,4,16,32",
    methods: str = "",
    engines: str = ",".join(ENGINES),
    threads: int = 1,
    results: Path = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    sizes = counts(batches, "--batches")
    workload = Workload.load(max(prompts, LEAST * max(sizes)))
    rounds = {
        size: batches_of(workload.ids, size, prompts) for size in sizes
    }  # refused before anything is measured
    some = (
        names(methods, workload.points, "is not certified here")
        if methods
        else list(workload.points)
    )
    pair = workload.pair
    request = workload.request
    params = replace(
        workload.params, methods={name: workload.params.methods[name] for name in some}
    )
    field = [
        replace(one, name=f"{one.name}-{engine}")
        for engine in names(engines, ENGINES, "is no engine")
        for one in ours(params, pair, request, engine)
    ]
    field += [generates(pair, request), baselines.static(pair, request, slots_of(workload.prompts))]
    development = [
        prompt["ids"] for prompt in read_prompts("development")[: params.benchmark.development]
    ]
    speculating, refused = baselines.chosen(pair, request, development) if 1 in sizes else ([], {})
    blocks = {one.name: one.block for one in speculating}
    found: dict[int, dict[str, Any]] = {}
    for size, some_batches in rounds.items():
        print(f"batch {size}")
        if size == 1:
            found[size] = measure([*field, *speculating], some_batches)
            found[size]["failed"].update(refused)
        else:
            found[size] = measure([*field, *map(row_by_row, field)], some_batches)
        about = {
            "pair": pair.name,
            "points": {name: workload.proof(name) for name in some},
            "chosen": blocks,
        }
        save(
            "speed", {**about, "batches": {str(done): one for done, one in found.items()}}, results
        )


def batches_of(ids: Sequence[list[int]], size: int, prompts: int) -> list[list[list[int]]]:
    """Full batches of about `prompts` prompts, but at least LEAST of them."""
    if size > (most := len(ids) // LEAST):
        raise UserError(
            f"{len(ids)} prompts do not fill {LEAST} batches of {size}, none of which comes twice. "
            + (f"Name sizes from 1 to {most} with --batches." if most else "Take more prompts.")
        )
    full = [list(ids[first : first + size]) for first in range(0, len(ids) - size + 1, size)]
    return full[: max(prompts // size, LEAST)]


def row_by_row(contender: speed.Contender) -> speed.Contender:
    """The same, one row of a batch after the other."""

    def decode(batch: speed.Prompts) -> speed.Answers:
        return [contender.decode([ids])[0][0] for ids in batch], None

    return replace(contender, name=SINGLY + contender.name, decode=decode)


def measure(field: Sequence[speed.Contender], batches: Sequence[speed.Prompts]) -> dict[str, Any]:
    """Every contender that runs, on equal batches of prompts."""
    able, failed = speed.working(field, batches[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = speed.times_of(able, speed.race(able, batches))
    contenders = compared(times, [one.name for one in able if one.is_baseline])
    for name, entry in contenders.items():
        print(f"{name:28} {entry['tokens_per_second']:8.1f} tokens per second", flush=True)
    return {"contenders": contenders, "failed": failed}


def compared(times: speed.Times, references: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tokens per second of every contender, and its ratios of summed seconds to each reference,
    with 90 % intervals.
    """
    seconds = {
        name: [sum(repeats) for repeats in entry["seconds"]] for name, entry in times.items()
    }
    found: dict[str, dict[str, Any]] = {}
    for name, entry in times.items():
        if name.startswith(SINGLY):
            continue
        rate = sum(entry["tokens"]) / sum(seconds[name])
        told = {
            "block": entry["block"],
            "tokens_per_second": rate,
            "n": len(seconds[name]),
            "loops": entry["loops"],
        }
        against = {
            f"vs_{one}": one for one in references if one != name and not one.startswith(SINGLY)
        }
        against |= {"vs_batch_1": SINGLY + name} if SINGLY + name in times else {}
        found[name] = told | {
            key: asdict(ratio_of_sums(seconds[one], seconds[name])) for key, one in against.items()
        }
    return found


if __name__ == "__main__":
    run(main)
