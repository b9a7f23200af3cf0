"""Run the core on several seeds of everything: pair, prompts and labels. One seed does not stand for a world.

    python -m pipeline.seeds                  seeds 1 to 5 -> docs/results/seeds.json
    python -m pipeline.seeds --seed 6 --seed 7

Every seed runs in a copy of the project, `.seeds/<seed>`, with a DVC cache of its own. A second start renews the
sources there and goes on where the first one stopped. Besides the core methods each seed calibrates the rules RIVALS,
the best of the large table that train nothing. A seed whose target is too weak is named with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import read_json
from gistgate.rules import RULES
from pipeline.common.code import REPORTING, write_result
from pipeline.common.entry import run
from pipeline.common.paths import PAIR_REPORT, PARAMS, REPORTS, RESULTS
from pipeline.params import read_params
from pipeline.report.tables import asks_gate
from pipeline.smoke import copy_project, dvc, merged

FOLDER = Path(".seeds")
FILE = RESULTS / "seeds.json"
SEEDS = (1, 2, 3, 4, 5)
RIVALS = ("ensemble", "sense", "regret-budget")
"""Rules without training that the core does not calibrate."""
MODULE = "pipeline.seeds"


def main(
    seed: Annotated[list[int] | None, typer.Option(help="A seed; may be repeated. Default: 1 to 5.")] = None,
) -> None:
    """Run the seeds one after another and gather their results."""
    gather({number: run_seed(number) for number in seed or SEEDS})


def run_seed(seed: int, changes: Mapping[str, Any] | None = None, folder: Path = FOLDER) -> dict[str, Any]:
    """What one seed found, or why it is excluded.

    Args:
        seed: of everything.
        changes: what differs from params.yaml besides.
        folder: where the copies of the project lie.

    Raises:
        UserError: a stage failed for another reason than a weak target.
    """
    place = folder / str(seed)
    place.mkdir(parents=True, exist_ok=True)
    wanted = merged(dict(changes or {}), {"seed": seed, "methods": {"free": rivals()}})
    copy_project(place, changes=((PARAMS, wanted),))
    print(f"seed {seed} in {place}", flush=True)
    try:
        dvc(place, "repro")
    except UserError:
        reason = too_weak(place)
        if reason is None:
            raise
        return {"excluded": reason}
    return compared(read_json(place / REPORTS / "summary.json"))


def rivals() -> dict[str, Any]:
    """The rules RIVALS as a block of params.yaml, with the settings that they declare."""
    return {
        name: {
            "rule": name,
            "drafter": "model",
            "variants": [dict(variant) for variant in RULES[name].variants],
            "knob": RULES[name].knob,
            "grid": list(RULES[name].grid),
        }
        for name in RIVALS
    }


def too_weak(place: Path) -> str | None:
    """Why a target was refused; None where something else failed."""
    wanted = read_params(place / PARAMS).pair_training.min_target_accuracy
    if not (place / PAIR_REPORT).is_file():
        return None
    found = read_json(place / PAIR_REPORT)["target"]["accuracy"]
    if found is None or found >= wanted:
        return None
    return f"its target answers {found:.1%} of the problems, and pair_training.min_target_accuracy is {wanted:.1%}."


def compared(summary: dict[str, Any]) -> dict[str, Any]:
    """The gate and every rule without training: length, speed to plain, bound; and the gate's lead in both."""
    lines = {
        name: {
            "tau": method["mean_accepted_length"],
            "time": method["speed"]["vs_plain"]["mean"],
            "bound": method["certified_bound"],
            "gate": asks_gate(method),
        }
        for name, method in summary["methods"].items()
    }
    return {"methods": lines, "lead": {unit: lead(lines, unit) for unit in ("tau", "time")}}


def lead(lines: Mapping[str, Mapping[str, Any]], unit: str) -> dict[str, Any]:
    """How far the best gate is ahead of the best rule without training, each the best in this unit."""
    gate, free = (
        max((name for name, one in lines.items() if one["gate"] is asks), key=lambda name: float(lines[name][unit]))
        for asks in (True, False)
    )
    return {"gate": gate, "free": free, "ratio": lines[gate][unit] / lines[free][unit]}


def gather(found: Mapping[int, Mapping[str, Any]], file: Path = FILE) -> None:
    """Write all seeds with the median and the range of the gate's lead."""
    used = [one for one in found.values() if "excluded" not in one]
    free = sorted({name for one in used for name, method in one["methods"].items() if not method["gate"]})
    spans = {unit: span([one["lead"][unit]["ratio"] for one in used]) for unit in ("tau", "time")} if used else {}
    seeds = {str(seed): one for seed, one in found.items()}
    write_result(file, {"seeds": seeds, "lead": spans, "free": free}, *REPORTING, MODULE)
    for seed, one in found.items():
        print(f"seed {seed}: {one.get('excluded') or one['lead']}")
    print(f"{file}: {spans or 'no seed has a target that is strong enough'}")


def span(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": median(values), "low": min(values), "high": max(values)}


if __name__ == "__main__":
    run(main)
