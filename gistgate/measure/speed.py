"""Decoding with a clock on both sides, batch by batch and in an order that rotates, so that a
machine that slows down slows all contenders. Loops are easy to draft: a batch that any contender
answers with a loop is dropped for all of them, unless every batch loops."""

import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar
from zlib import crc32

import torch
import transformers
from tqdm import tqdm

from gistgate.core.decoder import Decoder
from gistgate.core.files import read_json, write_json
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError, first_line

T = TypeVar("T")

Prompts = Sequence[Sequence[int]]
Answers = tuple[list[list[int]], Statistics | None]
"""New ids of every row, and what was counted about all rows; None where the library counts
nothing."""
Decode = Callable[..., Answers]
"""Prompt ids of every row -> answers; those of transformers take further arguments for
`generate`."""


@dataclass(frozen=True)
class Timed:
    """One decoded batch."""

    seconds: float  # wall-clock time, prefill included
    answers: list[list[int]]
    statistics: Statistics | None = None

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers))

    @property
    def loops(self) -> bool:
        """Whether an answer ends in a loop."""
        return any(map(LoopGuard().is_loop, self.answers))


@dataclass(frozen=True)
class Contender:
    """Something that continues prompts."""

    name: str
    decode: Decode
    block: int = 0  # K; 0 without a draft
    is_baseline: bool = False
    # whether it builds programs for the shape of each batch, which is done before the clock runs
    builds: bool = False
    also: tuple[str, ...] = ()  # methods that decode exactly like this and share its times

    def timed(self, prompts: Prompts) -> Timed:
        """Decode with a clock on both sides."""
        seconds, (answers, statistics) = clocked(lambda: self.decode(prompts))
        return Timed(seconds, answers, statistics)


def clocked(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a call, a GPU idle at either end, and what it returns."""
    synchronise()
    started = perf_counter()
    result = call()
    synchronise()
    return perf_counter() - started, result


def synchronise() -> None:
    """Wait until a GPU has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def contender(
    name: str, decoder: Decoder, request: dict[str, Any], *, any_engine: bool = False, **more: Any
) -> Contender:
    """Our decoder; without `any_engine` a request that falls back to another engine is an error.
    `more` goes to `Contender`.
    """

    def decode(prompts: Prompts) -> Answers:
        # What draws numbers draws others for every prompt, and the same ones at every repeat.
        seeds = [crc32(repr(list(ids)).encode()) for ids in prompts]
        answers = decoder.generate(prompts, **{"seeds": seeds, **request})
        if not any_engine:
            check_engine(decoder)
        return [answer.ids for answer in answers], total([answer.statistics for answer in answers])

    return Contender(name, decode, decoder.block, builds=decoder.engine.name == "compiled", **more)


def check_engine(decoder: Decoder) -> None:
    """Refuse (UserError) seconds of another engine than the one that was asked for."""
    reasons = sorted(decoder.engine.fell_back)
    if reasons:
        raise UserError(
            f"This cannot be timed on the {decoder.engine.name} engine: {reasons[0]}. Take the"
            " eager one."
        )


Lap = dict[str, list[Timed]]
"""Every run of one batch, by the name of the contender."""
Times = dict[str, dict[str, Any]]
"""By name: `block`; `seconds` (of every repeat), `tokens` and `target_forwards` of each batch; how
many had `loops`."""


def race(
    field: Sequence[Contender],
    batches: Sequence[Prompts],
    repeats: int = 1,
    title: str | None = None,
    folder: Path | None = None,
) -> list[Lap]:
    """Time every contender on every batch; the first batch warms up. `title` shows a progress
    bar; finished laps wait in `folder`, from which a later start takes them.
    """
    for entrant in field:  # the first call of everything pays for what later calls find done
        entrant.decode(batches[0])
    laps = []
    for place, batch in enumerate(tqdm(batches, desc=title, unit="batch", disable=title is None)):
        path = None if folder is None else folder / f"lap-{place:05d}.json"
        if path is None or not path.exists():
            laps.append(lap(field, batch, range(place, place + repeats)))
            if path is not None:
                write_json(path, {name: list(map(asdict, runs)) for name, runs in laps[-1].items()})
        else:
            laps.append({name: list(map(read_run, runs)) for name, runs in read_json(path).items()})
    return laps


def read_run(entries: dict[str, Any]) -> Timed:
    """A decoded batch as a lap's file has it."""
    counted = entries["statistics"]
    return Timed(
        entries["seconds"],
        entries["answers"],
        None if counted is None else Statistics.from_dict(counted),
    )


def lap(field: Sequence[Contender], batch: Prompts, turns: Sequence[int]) -> Lap:
    """One batch decoded by all contenders, once for each turn; a turn says who begins."""
    for entrant in field:
        if entrant.builds:  # the batch's shape may need new programs
            entrant.decode(batch)
    runs: Lap = {entrant.name: [] for entrant in field}
    for turn in turns:
        first = turn % len(field)
        for entrant in [*field[first:], *field[:first]]:
            runs[entrant.name].append(entrant.timed(batch))
    return runs


def without_loops(laps: Sequence[Lap]) -> tuple[list[Lap], int]:
    """The laps without a loop, or all laps where every one loops; and how many loop."""
    sound = [runs for runs in laps if not has_loop(runs)]
    return sound or list(laps), len(laps) - len(sound)


def has_loop(lap: Lap) -> bool:
    """Whether any contender answers the batch with a loop."""
    return any(run.loops for runs in lap.values() for run in runs)


def seconds_of(runs: Sequence[Timed]) -> list[float]:
    """What each run of a batch took."""
    return [run.seconds for run in runs]


def times_of(field: Sequence[Contender], laps: Sequence[Lap]) -> Times:
    """What a race measured, as plain JSON."""
    sound, loops = without_loops(laps)
    times = {}
    for entrant in field:
        batches = [runs[entrant.name] for runs in sound]
        counts = [runs[0].statistics for runs in batches]
        seconds = list(map(seconds_of, batches))
        times[entrant.name] = {
            "block": entrant.block,
            "seconds": seconds,
            "tokens": [runs[0].tokens for runs in batches],
            "target_forwards": [None if count is None else count.forwards for count in counts],
            "loops": loops,
        }
    return times


def by_kind(field: Sequence[Contender], times: Times) -> dict[str, Times]:
    """Times of baselines and of methods; a method that decodes exactly like a contender shares its
    times.
    """
    kinds: dict[str, Times] = {"baselines": {}, "methods": {}}
    for entrant in field:
        kind = "baselines" if entrant.is_baseline else "methods"
        kinds[kind][entrant.name] = times[entrant.name]
        for method in entrant.also:
            kinds["methods"][method] = times[entrant.name]
    return kinds


def working(field: Sequence[Contender], batch: Prompts) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that decode this batch, and the reason of each that cannot: that is a result,
    and not the end.
    """
    able = []
    failed = {}
    for entrant in field:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                entrant.decode(batch)
        except Exception as error:  # libraries fail in many ways
            failed[entrant.name] = f"{type(error).__name__}: {first_line(error)}"
        else:
            able.append(entrant)
    return able, failed


def machine() -> dict[str, Any]:
    """Where the seconds were measured."""
    return {
        "processor": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def side_by_side(
    decoder: Decoder, prompts: Prompts, **request: Any
) -> tuple[dict[str, tuple[float, Statistics]], int]:
    """Seconds and counts of plain, strict and `decoder` on all prompts, row by row, and how many
    prompts loop.
    """
    ways = {"plain": decoder.plain(), "strict": decoder.strict(), decoder.rule.id: decoder}
    field = [contender(name, way, request, any_engine=True) for name, way in ways.items()]
    laps, loops = without_loops(race(field, [[ids] for ids in prompts]))
    clocks = {}
    for name in ways:
        runs = [lap[name][0] for lap in laps]
        counted = total([run.statistics or Statistics() for run in runs])
        clocks[name] = (sum(run.seconds for run in runs), counted)
    return clocks, loops
