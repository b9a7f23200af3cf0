"""Disturb the pipeline again and again, let it finish, and compare what it wrote with an undisturbed run.

    python -m tests.faults.kills --kills 100 --folder .scratch/kills

The folder holds an undisturbed copy of the project with tiny sizes, a disturbed one on a small file system of its own,
and a line for each disturbance. A second call goes on where the first was stopped; delete the folder when the code has
changed. One pass disturbs every stage, or the DVC that runs it, a few times, and goes on after each disturbance as a
user would: with `make repro`'s command.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path
from random import Random
from time import monotonic
from typing import Annotated, Any

import typer
import yaml

from gistgate.errors import UserError
from gistgate.files import read_json, read_json_lines, write_json
from pipeline import smoke
from pipeline.common.entry import run
from tests.faults import results
from tests.faults.kills.compare import differing, unreadable
from tests.faults.kills.ground import Ground
from tests.faults.kills.moments import draw
from tests.faults.kills.records import Records

REPRO = "pipeline.repro"
"""What `make repro` runs."""
PATIENCE = 1800.0
"""Seconds that an undisturbed command may take."""
LIMITED = 300.0
"""Seconds that a disturbed command may take; under a limit of memory it may hang, and is killed then."""


def main(
    kills: Annotated[int, typer.Option(help="Disturbances in all, those of earlier calls included.")] = 100,
    folder: Annotated[Path, typer.Option(help="Place of both copies and of the records.")] = Path(".scratch/kills"),
    minutes: Annotated[float, typer.Option(help="No further disturbance is begun after so long.")] = 600.0,
    each: Annotated[int, typer.Option(help="Most disturbances of a stage in one pass.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of moments and ways.")] = 0,
) -> None:
    """Disturb, finish, compare, until there were enough disturbances."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts behind `&` ignore interrupts
    if not (folder / "fresh/dvc.yaml").exists():
        smoke.copy_project(folder / "fresh")
    ground, records, end = Ground(folder), Records(folder), monotonic() + 60 * minutes
    with ground.warm():
        stages, census = undisturbed(ground)
        while True:
            is_enough = len(records.struck()) >= kills or monotonic() > end
            if is_enough and not records.state["open"]:
                break
            if not (records.state["open"] and (ground.rough / "dvc.yaml").exists()):
                ground.renew()
                records.begin()
            for stage, command in stages[records.state["stage"] :]:
                for time in range(each):
                    if len(records.struck()) >= kills or monotonic() > end:
                        break
                    chance = Random(f"{seed} {records.state['pass']} {stage} {time}")
                    if not disturb(ground, records, draw(chance, stage, command, census, time)):
                        break  # the stage came to its end
                records.step()
            status, text = ground.run([REPRO], PATIENCE)
            records.close(status=status, differing=differing(folder / "calm", ground.rough))
            publish(records, ground)
            if status:
                raise UserError(
                    f"The pipeline did not end by itself after pass {records.state['pass']}: {text[-2000:]}"
                )


def undisturbed(ground: Ground) -> tuple[list[tuple[str, str]], dict[str, dict[str, Any]]]:
    """Let a copy of the project run undisturbed, and keep its artefacts.

    Returns:
        The stages in their order, each with its command, and for every process how long it took and how often each
        moment came.
    """
    folder, census = ground.folder, ground.folder / "census.jsonl"
    listed = folder / "stages.json"
    if not listed.exists():
        ground.renew()
        census.unlink(missing_ok=True)
        status, text = ground.run([REPRO], PATIENCE, FAULT_CENSUS=str(census))
        if status:
            raise UserError(f"The undisturbed run failed: {text[-2000:]}")
        shutil.copytree(ground.rough, folder / "calm", dirs_exist_ok=True)
        done = yaml.safe_load((folder / "calm/dvc.lock").read_text())["stages"]
        (ground.rough / "dvc.yaml").unlink()
        write_json(listed, [[name, stage["cmd"].removeprefix("python -m ")] for name, stage in done.items()])
    found = {line["process"]: line for line in read_json_lines(census)}
    return [(name, command) for name, command in read_json(listed)], found


def disturb(ground: Ground, records: Records, order: dict[str, Any]) -> bool:
    """Run one stage with an order to strike, and record what came of it; returns whether the stage is unfinished.

    A disturbance counts when its moment came and the run failed: a disk may still have had enough room.

    Raises:
        UserError: the pipeline does not start again by itself after the disturbance before this one.
    """
    note = ground.folder / "struck.jsonl"
    note.unlink(missing_ok=True)
    stage, started = order.pop("stage"), monotonic()
    status, text = ground.run([REPRO, stage], LIMITED, **ground.ordered(order, note))
    ground.clear()
    struck = read_json_lines(note) if note.exists() else []
    line = {
        "stage": stage, "process": order["process"], "way": order["way"], "moment": order["moment"],
        "count": order["count"], "second": struck[0]["seconds"] if struck else None,
        "struck": bool(struck) and status != 0,
        "status": status, "took": round(monotonic() - started, 1), "unreadable": unreadable(ground.rough), "stuck": "",
    }  # fmt: skip
    if not struck and status:
        if records.lines:
            records.lines[-1]["stuck"] = text[-500:]
        records.write()
        raise UserError(f"Undisturbed, {stage} failed after {records.lines[-1:]}: {text[-2000:]}")
    records.add(line)
    print(" ".join(str(line[key]) for key in ("stage", "way", "moment", "struck", "status", "took")), flush=True)
    return status != 0


def publish(records: Records, ground: Ground) -> None:
    """Put the counts into the published results."""
    struck = records.struck()
    results.write_disturbances(struck)  # first, so that the counts name this file
    counts = {key: dict(Counter(line[key] for line in struck)) for key in ("way", "moment", "stage")}
    results.add(
        kills=len(struck), kills_lost=records.lost(), kills_passes=len(records.state["passes"]),
        kills_ways=counts["way"], kills_moments=counts["moment"],
        kills_stages=counts["stage"],
        kills_hung=sum(line["status"] is None for line in struck),
        kills_small_disk="tmpfs" if ground.mount else "limit on the size of files",
        kills_memory_group=bool(ground.group),
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
