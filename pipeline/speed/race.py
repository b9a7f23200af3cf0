"""Contenders timed side by side: every batch is decoded by all of them before the next batch begins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pipeline.common.progress import bar
from pipeline.speed.clock import Contender, Prompts, Timed
from pipeline.speed.kept_laps import KeptLaps

Times = dict[str, dict[str, Any]]
"""By name: `block`; `seconds` (of every repeat), `tokens` and `target_forwards` of each batch; how many had `loops`."""


def race(
    field: Sequence[Contender],
    batches: Sequence[Prompts],
    repeats: int = 1,
    title: str | None = None,
    kept: KeptLaps | None = None,
    goes_on: Callable[[Times], bool] = lambda _times: True,
) -> Times:
    """Time every contender on every batch, in an order that rotates, so that a slower machine slows all of them.

    The first batch warms up, because the first call of everything pays for what later calls find done. A batch that
    any contender answers with a loop is dropped for all, since loops are easy to draft; all are kept if every batch
    loops.
    `title` shows a progress bar; `kept` has the laps of earlier starts; `goes_on` hears after every batch of the times
    so far, and the race ends where it says no.
    """
    for contender in field:
        contender.decode(batches[0])
    times: Times = {c.name: {"block": c.block, "seconds": [], "tokens": [], "target_forwards": []} for c in field}
    loops = []
    for place, batch in enumerate(bar(batches, title=title, unit="prompt")):
        decode = partial(lap, field, batch, [place + repeat for repeat in range(repeats)])
        runs = decode() if kept is None else kept.lap(place, field, decode)
        loops.append(any(run.loops for timed in runs.values() for run in timed))
        for name, timed in runs.items():
            times[name]["seconds"].append([run.seconds for run in timed])
            times[name]["tokens"].append(timed[0].tokens)
            times[name]["target_forwards"].append(timed[0].forwards)
        if not goes_on(without_loops(times, loops)):
            break
    return without_loops(times, loops)


def working(field: Sequence[Contender], batch: Prompts) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that decode this batch, and the reason of each that cannot: that is a result, and not the end."""
    able, failed = [], {}
    for contender in field:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                contender.decode(batch)
        except Exception as error:  # libraries fail in many ways
            failed[contender.name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
        else:
            able.append(contender)
    return able, failed


def lap(field: Sequence[Contender], batch: Prompts, turns: Sequence[int]) -> dict[str, list[Timed]]:
    """One batch decoded by all contenders, once for each turn; a turn says who begins.

    Who builds programs decodes the batch before the clock runs, since its shape may need new ones.
    """
    for contender in field:
        if contender.builds:
            contender.decode(batch)
    runs: dict[str, list[Timed]] = {contender.name: [] for contender in field}
    for turn in turns:
        first = turn % len(field)
        for contender in [*field[first:], *field[:first]]:
            runs[contender.name].append(contender.timed(batch))
    return runs


def without_loops(times: Times, loops: Sequence[bool]) -> Times:
    """The times of batches that no contender answered with a loop, or of all batches where every batch loops."""
    kept = [place for place, looped in enumerate(loops) if not looped] or range(len(loops))
    return {
        name: {
            key: [value[place] for place in kept] if isinstance(value, list) else value for key, value in entry.items()
        }
        | {"loops": sum(loops)}
        for name, entry in times.items()
    }


def by_kind(field: Sequence[Contender], times: Times) -> dict[str, Times]:
    """Times of baselines and of methods; a method that decodes exactly like a contender shares its times."""
    methods = {name: times[c.name] for c in field for name in (*([] if c.is_baseline else [c.name]), *c.also)}
    return {"baselines": {c.name: times[c.name] for c in field if c.is_baseline}, "methods": methods}
