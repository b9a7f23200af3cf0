"""What every benchmark shares: rounds side by side, ratios with intervals, one folder of results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gistgate.errors import UserError
from gistgate.observing.intervals import ratio_of_sums
from pipeline.common.code import running, write_result
from pipeline.common.paths import BENCHMARK_RESULTS
from pipeline.speed.clock import Contender, Prompts, machine
from pipeline.speed.race import Times, race

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
