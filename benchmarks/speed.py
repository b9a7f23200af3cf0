"""Tokens per second of every decoding, side by side in one process, in the folder of a finished
run.

python -m benchmarks.speed [--prompts 100] [--batches 1,4,16,32] [--methods NAME,...] [--engines
eager,compiled]
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from gistgate import __version__
from gistgate.compiled import ENGINES
from gistgate.core.files import write_json
from gistgate.core.utils import UserError, nearest
from gistgate.measure import baselines, speed
from gistgate.measure.statistics import ratio_of_sums
from pipeline.operating import Operating, operating_point
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import calibration_file, prompts_of
from pipeline.run import run
from pipeline.stages.benchmark import generates, ours, slots_of
from pipeline.task import read_prompts, request_of

RESULTS = Path("benchmarks/results")
LEAST = 4
"""Fewest batches of a size, for the sake of intervals over batches."""


def certified_points(params: Params, methods: str) -> dict[str, Operating]:
    """Methods that run loosely with a certificate for the headline budget, by name; of a list
    `methods` with commas these alone.
    """
    points = {}
    for name in params.methods:
        if calibration_file(name).exists():
            point = operating_point(params, name)
            if point.certified and point.rule != "exact":
                points[name] = point
    if not methods:
        return points
    for name in methods.split(","):
        if name not in points:
            raise UserError(f"'{name}' is not certified here. {nearest(name, points)}")
    return {name: points[name] for name in methods.split(",")}


def main(
    prompts: int = 100,
    batches: str = "1,4,16,32",
    methods: str = "",
    engines: str = ",".join(ENGINES),
    results: Path = RESULTS,
) -> None:
    params = read_params()
    if not prompts_of("test").exists():
        raise UserError(f"This folder has no {prompts_of('test')}. Run `make repro` here first.")
    pair = load_pair(params)
    rows = read_prompts("test")
    request = request_of(rows, pair)
    points = certified_points(params, methods)
    params = replace(params, methods={name: params.methods[name] for name in points})
    torch.set_num_threads(params.benchmark.threads)
    development = read_prompts("development")[: params.benchmark.development]
    field, refused = baselines.chosen(pair, request, [prompt["ids"] for prompt in development])
    field += [generates(pair, request), baselines.static(pair, request, slots_of(rows))]
    for engine in engines.split(","):
        entrants = ours(params, pair, request, engine)
        field += [replace(entrant, name=f"{entrant.name}-{engine}") for entrant in entrants]
    about = {
        "pair": pair.name,
        "points": {name: asdict(point) for name, point in points.items()},
        "machine": speed.machine(),
        "version": __version__,
    }
    path = results / f"speed-{'gpu' if torch.cuda.is_available() else 'cpu'}.json"
    ids = [row["ids"] for row in rows]
    figures: dict[str, Any] = {}
    for size in map(int, batches.split(",")):
        print(f"batch {size}")
        contenders, failed = measure(field, batches_of(ids, size, prompts))
        figures[str(size)] = {"contenders": contenders, "failed": failed | refused}
        write_json(path, {**about, "batches": figures})
        print(f"Written: {path}")


def batches_of(ids: Sequence[list[int]], size: int, prompts: int) -> list[list[list[int]]]:
    """Full batches of about `prompts` prompts, but LEAST of them where there are as many."""
    full = [list(ids[first : first + size]) for first in range(0, len(ids) - size + 1, size)]
    return full[: max(prompts // size, LEAST)]


def measure(
    field: Sequence[speed.Contender], batches: Sequence[speed.Prompts]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Every contender that runs, on equal batches of prompts; and why others do not."""
    able, failed = speed.working(field, batches[0])
    times = speed.times_of(able, speed.race(able, batches))
    contenders = compared(times, [entrant.name for entrant in able if entrant.is_baseline])
    for name, figures in contenders.items():
        print(f"{name:28} {figures['tokens_per_second']:8.1f} tokens per second", flush=True)
    return contenders, failed


def compared(times: speed.Times, references: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tokens per second of every contender, and its ratios of summed seconds to each reference,
    with 90 % intervals.
    """
    seconds = {name: list(map(sum, entry["seconds"])) for name, entry in times.items()}
    contenders: dict[str, dict[str, Any]] = {}
    for name, entry in times.items():
        ratios = {
            f"vs_{reference}": asdict(ratio_of_sums(seconds[reference], seconds[name]))
            for reference in references
            if reference != name
        }
        contenders[name] = {
            "block": entry["block"],
            "tokens_per_second": sum(entry["tokens"]) / sum(seconds[name]),
            "n": len(seconds[name]),
            "loops": entry["loops"],
            **ratios,
        }
    return contenders


if __name__ == "__main__":
    run(main)
