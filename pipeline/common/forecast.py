"""How long a run takes here, and what is left of it: measured times of an earlier run, scaled to this machine.

    python -m pipeline.common.forecast             says how long all stages take on this machine (`make repro`)
    python -m pipeline.common.forecast --write     keeps the times of the last run as the measured ones

A stage notes how long it took in .scratch/times.json. The stages of a run that are done say how fast this machine is;
before the first one, a short product of matrices does. Nothing is said without a terminal, in CI, or about a pair whose
times nobody measured.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, time
from typing import Annotated, Any

import typer
import yaml

from gistgate.errors import UserError
from gistgate.files import read_json, read_text, write_json, write_text
from pipeline.common.paths import SCRATCH

MEASURED = Path(__file__).with_name("stage_times.yaml")
NOTES = SCRATCH / "times.json"
PAIR = "embedded"
"""The pair whose times were measured."""
SIZES = (4096, 256, 704)
"""The product that measures a machine: about a layer of the embedded target in training."""
PROBE = 0.5
"""Seconds that it takes."""


@dataclass(frozen=True)
class Measured:
    """Times of a finished run."""

    speed: float
    """Speed of its machine, in 10^9 operations per second."""
    seconds: dict[str, float]
    """Seconds of every stage, in DVC's order."""

    def behind(self, stage: str) -> dict[str, float]:
        """The stages from this one on."""
        names = list(self.seconds)
        return {name: self.seconds[name] for name in names[names.index(stage) :]}


def read_measured() -> Measured:
    """The published times."""
    content = yaml.safe_load(read_text(MEASURED))
    return Measured(float(content["speed"]), dict(content["seconds"]))


def shown() -> bool:
    """Whether somebody watches."""
    return sys.stderr.isatty() and not os.environ.get("CI")


def probe() -> float:
    """Speed of float32 products of one thread right now, other programs included, in 10^9 operations per second."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows, inner, columns = SIZES
    left, right, count = torch.ones(rows, inner), torch.ones(inner, columns), 0
    torch.mm(left, right)
    started = perf_counter()
    while (spent := perf_counter() - started) < PROBE:
        torch.mm(left, right)
        count += 1
    torch.set_num_threads(threads)
    return 2e-9 * rows * inner * columns * count / spent


def minutes(seconds: float) -> str:
    """A duration as people say it."""
    whole = max(1, round(seconds / 60))
    return f"about {whole} minute{'s' if whole > 1 else ''}"


def read_notes() -> dict[str, Any]:
    """What stages noted in this folder; nothing where the file is missing or damaged."""
    try:
        notes = read_json(NOTES) if NOTES.is_file() else {}
    except UserError:
        return {}
    return notes if isinstance(notes, dict) else {}


def ratio(measured: Measured, notes: dict[str, Any], run: int) -> float:
    """How many times as long as measured a stage takes here: from the stages of this run, else from the probe."""
    done = {name: note["seconds"] for name, note in notes.get("stages", {}).items() if note["run"] == run}
    known = {name: seconds for name, seconds in done.items() if name in measured.seconds}
    if known:
        return float(sum(known.values())) / sum(measured.seconds[name] for name in known)
    return measured.speed / float(notes.get("speed") or measured.speed)


def left(stage: str, pair: str) -> str | None:
    """A sentence about what is left when a stage begins; None where nothing is known."""
    measured = read_measured()
    if stage not in measured.seconds:
        return None
    place, count = list(measured.seconds).index(stage) + 1, len(measured.seconds)
    sentence = f"Stage {place} of {count}, {stage}."
    if pair != PAIR:
        return sentence
    factor = ratio(measured, read_notes(), os.getppid())
    return f"{sentence} Left overall: {minutes(factor * sum(measured.behind(stage).values()))}, if none is skipped."


def announce(pair: str | None) -> None:
    """Say what is left, where DVC runs a stage and somebody watches."""
    stage = os.environ.get("DVC_STAGE")
    if stage and pair and shown() and (sentence := left(stage, pair)):
        print(sentence, file=sys.stderr, flush=True)


def note(seconds: float) -> None:
    """Keep how long the stage of DVC that just ended took."""
    if stage := os.environ.get("DVC_STAGE"):
        notes = read_notes()
        stages = {**notes.get("stages", {}), stage: {"seconds": round(seconds, 1), "run": os.getppid(), "at": time()}}
        write_json(NOTES, {**notes, "stages": stages})


def main(write: Annotated[bool, typer.Option("--write", help="Keep the times of the last run.")] = False) -> None:
    """Say how long a run takes on this machine."""
    from pipeline.params import read_params

    measured, notes = read_measured(), read_notes()
    if write:
        write_text(MEASURED, renewed(measured, notes))
        print(f"{MEASURED.name} has the times of the last run.")
    elif shown() and read_params().pair == PAIR:
        write_json(NOTES, {**notes, "speed": (speed := probe())})
        whole = sum(measured.seconds.values()) * measured.speed / speed
        said = f"All {len(measured.seconds)} stages take {minutes(whole)} on this machine, as busy as it is now;"
        print(f"{said} stages whose inputs did not change are skipped.", file=sys.stderr)


def renewed(measured: Measured, notes: dict[str, Any]) -> str:
    """The file with the times of the last run.

    Raises:
        UserError: a stage has no time.
    """
    stages = notes.get("stages", {})
    if missing := [name for name in measured.seconds if name not in stages]:
        raise UserError(f"The stage `{missing[0]}` has not run here. Run `make repro` from the start first.")
    heading = [line for line in read_text(MEASURED).splitlines() if line.startswith("#")]
    speed = notes.get("speed") or measured.speed
    times = [f"  {name}: {stages[name]['seconds']}" for name in measured.seconds]
    return "\n".join([*heading, f"speed: {speed:.1f}", "seconds:", *times]) + "\n"


if __name__ == "__main__":
    from pipeline.common.entry import run

    run(main)
