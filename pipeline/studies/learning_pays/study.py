"""When does a learned gate pay? The whole pipeline at several dials of the embedded world, everything else the same.

    python -m pipeline.studies.learning_pays.study                             all points of POINTS, three seeds each
    python -m pipeline.studies.learning_pays.study --points skew-0 --points distance-1 --seed 2 --minutes 60

Every point runs up to the calibration in a copy of the project below .scratch, with its own parameters and calibration
prompts. As soon as it is finished it is added to benchmarks/results/when-learning-pays.json, and its looks at the
calibration prompts to docs/results/looks.json. Points that stand there under the same parameters, draw and code are
skipped; those of others leave the file. After `--minutes` nothing new is started; the copy stays, and the next start
goes on in it. At the end the figure beside the results is drawn and the table printed (`--minutes 0` does only that).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import product
from time import monotonic
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.code import KEY, write_published
from pipeline.common.entry import run
from pipeline.common.paths import BENCHMARK_RESULTS, SCRATCH
from pipeline.common.reading import nearest
from pipeline.report.figures import save
from pipeline.report.gathered import MARK, copy, kept, mark
from pipeline.report.looks import publish_looks
from pipeline.report.origin import origin
from pipeline.studies.learning_pays.dials import POINTS, changes_of
from pipeline.studies.learning_pays.figure import draw, shown, table
from pipeline.studies.learning_pays.point import MODULES, measure

OUTPUT = BENCHMARK_RESULTS / "when-learning-pays.json"
COPIES = SCRATCH / "when-learning-pays"
SEEDS = (1, 2, 3)
"""One seed does not stand for a point."""


def main(
    points: Annotated[list[str] | None, typer.Option("--points", metavar="POINT", help=", ".join(POINTS))] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Seed of everything random; may be repeated. Default: 1 to 3.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Start no stage after so many minutes.")] = None,
) -> None:
    names = points or list(POINTS)
    for name in names:
        if name not in POINTS:
            raise UserError(f"There is no point '{name}'. {nearest(name, POINTS)}")
    began, limit = monotonic(), float("inf") if minutes is None else 60 * minutes
    failed = study(names, seed or SEEDS, lambda: monotonic() - began < limit)
    results = shown(recorded())
    if results:
        picture = OUTPUT.with_suffix(".png")
        save(draw(results), picture)
        write_published(OUTPUT, recorded(), read_json(OUTPUT), [picture])  # names the picture that shows it
    print(table(results), end="")
    if failed:
        raise UserError(f"No result from {', '.join(failed)}; what went wrong stands above. The other points are kept.")


def study(names: Sequence[str], seeds: Sequence[int], has_time: Callable[[], bool]) -> list[str]:
    """Run the points that are not recorded yet, seed after seed; returns those that failed."""
    failed = []
    for seed, name in product(seeds, names):
        key = f"{name}/seed-{seed}"
        if recorded().get(key, {}).get(MARK) == mark_of(key):
            print(f"{key}: recorded, skipped", flush=True)
            continue
        try:
            if not run_point(name, seed, has_time):
                print(f"{key}: out of time; the next start goes on here", flush=True)
                break
        except UserError as error:
            print(f"{key}: {error}", file=sys.stderr, flush=True)
            failed.append(key)
    return failed


def run_point(name: str, seed: int, has_time: Callable[[], bool]) -> bool:
    """Measure and record one point; False where the time ran out.

    Raises:
        UserError: a stage failed, or the calibration prompts were published with another choice.
    """
    place, changes = COPIES / f"{name}-{seed}", changes_of(name, seed)
    if not has_time():
        return False
    copy(place, changes, MODULES)
    found = measure(place, has_time)
    if found is None:
        return False
    publish_looks(place / "reports/calibration", OUTPUT)
    row = {"point": name, "seed": seed, "draw": changes["prompts"]["draw"], "changes": POINTS[name], **found}
    record(f"{name}/seed-{seed}", {**row, MARK: mark(changes, MODULES)})
    shutil.rmtree(place)
    return True


def record(key: str, row: dict[str, Any]) -> None:
    """Add a finished point to the file, which keeps the points of the same parameters and code."""
    code = origin(MODULES)
    write_published(OUTPUT, {**kept(recorded(), mark_of), key: {**row, **code}}, code)


def mark_of(key: str) -> str:
    """The mark that a point, named with its seed, has under the present parameters and code; empty for an unknown."""
    name, _, seed = key.partition("/seed-")
    return mark(changes_of(name, int(seed)), MODULES) if name in POINTS else ""


def recorded() -> dict[str, dict[str, Any]]:
    """All finished points, by name and seed."""
    return {key: row for key, row in read_json(OUTPUT).items() if key != KEY} if OUTPUT.exists() else {}


if __name__ == "__main__":
    run(main)
