"""Disturb the pipeline again and again, let it finish, and compare what it wrote with an undisturbed run.

    python -m tests.faults.kills --kills 100 --target heads --folder .scratch/kills

The folder holds an undisturbed copy of the project with tiny sizes, a disturbed one, and the counts so far; a second
call goes on where the first was stopped. Each disturbance is a `dvc repro` that is killed at a random moment (the stage
alone, or DVC with it), interrupted as by Ctrl-C, or given a limit on the size of files or on memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any

import psutil
import typer
import yaml
from safetensors import safe_open

from gistgate.files import read_json, write_json
from pipeline import smoke
from pipeline.common.entry import run
from tests.faults import results

WAYS = ("kill the stage", "kill DVC and the stage", "interrupt", "full disk", "little memory")
ARTEFACTS = ("data", "models")
"""Folders whose files are a function of parameters and code, seconds excluded."""
LIMITS = {"full disk": resource.RLIMIT_FSIZE, "little memory": resource.RLIMIT_AS}
EMPTY: dict[str, Any] = {"kills": 0, "lost": 0, "pending": 0, "runs": 0, "ways": {}, "seconds": 0.0}


def main(
    kills: Annotated[int, typer.Option(help="Disturbances in all, those of earlier calls included.")] = 100,
    target: Annotated[str, typer.Option(help="Stage up to which the pipeline runs.")] = "heads",
    folder: Annotated[Path, typer.Option(help="Place of both copies and of the counts.")] = Path(".scratch/kills"),
    minutes: Annotated[float, typer.Option(help="No further disturbance is begun after so long.")] = 600.0,
    rounds: Annotated[int, typer.Option(help="Disturbances between two comparisons.")] = 25,
    steps: Annotated[int, typer.Option(help="Training steps of the target; few suffice up to `reference`.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed of moments and ways.")] = 0,
) -> None:
    """Disturb, finish, compare, until there were enough disturbances."""
    end, counts_file, calm, rough = (
        monotonic() + 60 * minutes,
        folder / "counts.json",
        folder / "calm",
        folder / "rough",
    )
    counts = {**EMPTY, **(read_json(counts_file) if counts_file.exists() else {})}
    if not counts["seconds"]:
        counts["seconds"] = undisturbed(folder, target, steps)
    write_json(counts_file, counts)
    expected = hashes(calm)
    while True:
        chance = random.Random(seed + counts["kills"])
        if not rough.exists():
            shutil.copytree(folder / "fresh", rough)
        enough = counts["kills"] >= kills or monotonic() > end
        if enough or counts["pending"] >= rounds:
            finish(rough, target)
            is_same = hashes(rough) == expected
            counts["lost"] += 0 if is_same else counts["pending"]
            counts["runs"], counts["pending"] = counts["runs"] + 1, 0
            shutil.rmtree(rough)
        else:
            way = disturb(rough, target, chance, counts["seconds"])
            counts["kills"], counts["pending"] = counts["kills"] + 1, counts["pending"] + 1
            counts["ways"][way] = counts["ways"].get(way, 0) + 1
            if halves := unreadable(rough):
                counts["lost"] += 1
                print(f"half a file after '{way}': {halves}", file=sys.stderr)
        write_json(counts_file, counts)
        if not counts["pending"]:
            results.add(
                kills=counts["kills"], kills_lost=counts["lost"], kills_ways=counts["ways"],
                kills_compared_runs=counts["runs"], kills_target=target,
            )  # fmt: skip
            if enough:
                return


def undisturbed(folder: Path, target: str, steps: int) -> float:
    """Copy the project, and run a copy of it that nobody disturbs; returns the seconds that this took."""
    shutil.rmtree(folder, ignore_errors=True)
    smoke.copy_project(folder / "fresh")
    sizes = {"pair_training": {"target": {"steps": steps}, "draft": {"steps": steps // 2}}}
    params = folder / "fresh/params.yaml"
    params.write_text(yaml.safe_dump(smoke.merged(yaml.safe_load(params.read_text()), sizes), sort_keys=False))
    shutil.copytree(folder / "fresh", folder / "calm")
    started = monotonic()
    smoke.dvc(folder / "calm", "repro", target)
    return monotonic() - started


def finish(folder: Path, target: str) -> None:
    """Let the pipeline come to its end; whatever a human would have to do first makes this fail."""
    smoke.dvc(folder, "repro", target)


def disturb(folder: Path, target: str, chance: random.Random, seconds: float) -> str:
    """Begin `dvc repro` and disturb it once; returns how. A run that ends before its moment counts too."""
    way = chance.choice(WAYS)
    before: Callable[[], None] | None = None
    if way in LIMITS:
        most = chance.choice((2_000, 50_000)) if way == "full disk" else chance.choice((1, 2, 3)) << 30
        kind = LIMITS[way]
        before = lambda: resource.setrlimit(kind, (most, most))  # noqa: E731 (runs in the new process)
    done = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", target], cwd=folder, env=smoke.environment(folder), preexec_fn=before,
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        # Native libraries may try for ever to get memory that they cannot have, so that a limit ends in a kill as well.
        done.wait(seconds if way in LIMITS else chance.uniform(1.0, max(5.0, 0.4 * seconds)))
    except subprocess.TimeoutExpired:
        strike(done, way)
    done.wait()
    return way


def strike(process: subprocess.Popen[bytes], way: str) -> None:
    """End a run, and wait for everything that it started."""
    family = psutil.Process(process.pid).children(recursive=True)
    stages = [one for one in family if "pipeline.stages" in " ".join(command(one))]
    if way == "interrupt":
        os.killpg(process.pid, signal.SIGINT)
    elif way == "kill the stage" and stages:
        stages[-1].kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    psutil.wait_procs(family, timeout=60)
    sleep(0.1)


def command(process: psutil.Process) -> list[str]:
    """The command line of a process; empty for one that has ended."""
    try:
        found: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return found


def files(folder: Path) -> list[Path]:
    """Every artefact that a reader would take for whole: hidden temporary files are not meant to be read."""
    found = [path for top in ARTEFACTS for path in sorted((folder / top).rglob("*")) if path.is_file()]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def hashes(folder: Path) -> dict[str, str]:
    """Relative names and contents of all artefacts."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files(folder)}


def unreadable(folder: Path) -> list[str]:
    """Artefacts that are there and cannot be read."""
    found = []
    for path in files(folder):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt") as file:
                    list(file.keys())
            elif path.suffix in (".json", ".jsonl"):
                lines = path.read_text().split("\n") if path.suffix == ".jsonl" else [path.read_text()]
                _ = [json.loads(line) for line in lines if line]
        except Exception as error:
            found.append(f"{path}: {error}")
    return found


if __name__ == "__main__":
    run(main)
