"""Run the core on several seeds of everything: pair, prompts and labels. One seed does not stand for a world.

    python -m pipeline.seeds                  seeds 1 to 5 -> docs/results/seeds.json, README.md
    python -m pipeline.seeds --seed 6 --seed 7

Every seed runs in a copy of the project, `.seeds/<seed>`, with a DVC cache of its own. A second start renews the
sources there and goes on where the first one stopped. A finished seed is recorded at once, beside those that the same
code found with the same parameters, and its looks at calibration prompts enter docs/results/looks.json. A seed whose
target is too weak is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from gistgate.files import read_json
from pipeline.common.code import write_published
from pipeline.common.entry import run
from pipeline.common.paths import REPORTS, RESULTS
from pipeline.report.gathered import MARK, kept, mark
from pipeline.report.looks import publish_looks
from pipeline.report.origin import origin
from pipeline.report.publish import SEEDS, renew
from pipeline.seed import MODULES, changes_of, run_seed

FOLDER = Path(".seeds")
FILE = RESULTS / SEEDS
NUMBERS = (1, 2, 3, 4, 5)


def main(
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated. Default: 1 to 5.")] = None,
) -> None:
    """Run the seeds one after another; each is recorded as soon as it is finished."""
    for number in seed or NUMBERS:
        found = run_seed(number, FOLDER / str(number))
        publish_looks(FOLDER / str(number) / REPORTS / "calibration", FILE)
        record(number, found)
        renew(Path("README.md"), RESULTS)


def record(seed: int, found: Mapping[str, Any], file: Path = FILE) -> None:
    """Add a seed to those of the same parameters and code."""
    seeds = read_json(file)["seeds"] if file.exists() else {}
    rows = {**kept(seeds, mark_of), str(seed): {**found, MARK: mark_of(str(seed))}}
    gather({int(name): row for name, row in rows.items()}, file)


def mark_of(seed: str) -> str:
    """The mark of a seed's results under the present parameters and code."""
    return mark(changes_of(int(seed)), MODULES)


def gather(found: Mapping[int, Mapping[str, Any]], file: Path = FILE) -> None:
    """Write all seeds with the median and the range of the gate's lead."""
    used = [one for one in found.values() if "excluded" not in one]
    free = sorted({name for one in used for name, method in one["methods"].items() if not method["gate"]})
    spans = {unit: span([one["lead"][unit]["ratio"] for one in used]) for unit in ("tau", "time")} if used else {}
    seeds = {str(seed): found[seed] for seed in sorted(found)}
    write_published(file, {"seeds": seeds, "lead": spans, "free": free}, origin(MODULES))
    for name, one in seeds.items():
        print(f"seed {name}: {one.get('excluded') or one['lead']}")
    print(f"{file}: {spans or 'no seed has a target that is strong enough'}", flush=True)


def span(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": median(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    run(main)
