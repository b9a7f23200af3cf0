"""When does a learned gate pay? The whole pipeline at several dials of the embedded world, everything else the same.

    python -m pipeline.studies.learning_pays.study                             all points of POINTS
    python -m pipeline.studies.learning_pays.study --points skew-0 --points distance-1 --seed 2 --minutes 60

Every point runs up to the calibration in a copy of the project below .scratch, with its own parameters, and is
added to benchmarks/results/when-learning-pays.json as soon as it is finished; points that stand there under the same
parameters are skipped. After `--minutes` nothing new is started; the copy stays, and the next start goes on in it.
At the end the figure beside the results is drawn and the table printed (`--minutes 0` does only that).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
import yaml

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.rules import RULES
from pipeline.common.entry import run
from pipeline.common.reading import nearest
from pipeline.common.resume import SCRATCH, fingerprint
from pipeline.report.figures import save
from pipeline.report.results import STRICT
from pipeline.smoke import ROOT, copy_project, dvc, merged
from pipeline.studies.learning_pays.figure import draw, line, published, table

OUTPUT = Path("benchmarks/results/when-learning-pays.json")
GATE = "autojudge"
TARGETS = ("pair", "reference", "pilot", "heads", "calibrate_free", f"calibrate_learned@{GATE}")
"""Stages that are asked for in turn, with all before them; time is looked at in between."""
POINTS: dict[str, dict[str, Any]] = {
    "similar": {},
    "neutral": {"world": {"kind": "neutral"}},
    "skew-0": {"world": {"skew": 0.0}},
    "skew-1": {"world": {"skew": 1.0}},
    "no-ornaments": {"world": {"ornaments": False}},
    "distance-0": {"world": {"dialect_distance": 0.0}},
    "distance-0.4": {"world": {"dialect_distance": 0.4}},
    "distance-1": {"world": {"dialect_distance": 1.0}},
    "weak-draft": {"pair_training": {"draft": {"steps": 175}}},
    "strong-draft": {"pair_training": {"draft": {"steps": 1000}}},
    "unsure-target": {"pair_training": {"target": {"steps": 350}}},
    "sure-target": {"pair_training": {"target": {"steps": 1000}}},
}
"""What differs from params.yaml at each point, one dial at a time."""


def rule_method(name: str) -> dict[str, Any]:
    """A method block with the knob, grid and variants that a rule declares."""
    rule = RULES[name]
    block = {"rule": name, "drafter": "model", "knob": rule.knob, "grid": list(rule.grid)}
    return {**block, "variants": [dict(variant) for variant in rule.variants]}


SIZES: dict[str, Any] = {
    "pair_training": {"min_target_accuracy": 0.0},
    "prompts": {"test": 8},
    "train": {"heads": ["logistic"]},
    "methods": {"free": {"random": None, **{name: rule_method(name) for name in ("ensemble", "kl-judge", "typical")}}},
}
"""Sizes and methods of all points; None takes a method away. Test prompts are not decoded. `ensemble` is the best rule
without training in the large table, `typical` the one that reads the entropy."""


def main(
    points: Annotated[list[str] | None, typer.Option("--points", metavar="POINT", help=", ".join(POINTS))] = None,
    seed: Annotated[int, typer.Option(help="Seed of the world and of everything random.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Start no stage after so many minutes.")] = None,
) -> None:
    names = points or list(POINTS)
    for name in names:
        if name not in POINTS:
            raise UserError(f"There is no point '{name}'. {nearest(name, POINTS)}")
    began, limit = monotonic(), float("inf") if minutes is None else 60 * minutes
    failed = study(names, seed, lambda: monotonic() - began < limit)
    results = [*published(), *recorded().values()]
    save(draw(results), OUTPUT.with_suffix(".png"))
    print(table(results), end="")
    if failed:
        raise UserError(f"No result from {', '.join(failed)}; what went wrong stands above. The other points are kept.")


def study(names: list[str], seed: int, has_time: Callable[[], bool]) -> list[str]:
    """Run the points that are not recorded yet; returns those that failed."""
    failed = []
    for name in names:
        changes, key = merged(merged(SIZES, POINTS[name]), {"seed": seed}), f"{name}/seed-{seed}"
        mark = fingerprint(changes)
        if recorded().get(key, {}).get("parameters") == mark:
            print(f"{key}: recorded, skipped", flush=True)
            continue
        try:
            point = measure(SCRATCH / "when-learning-pays" / f"{name}-{seed}", changes, has_time)
        except UserError as error:
            print(f"{key}: {error}", file=sys.stderr, flush=True)
            failed.append(key)
            continue
        if point is None:
            print(f"{key}: out of time; the next start goes on here", flush=True)
            break
        row = {"point": name, "seed": seed, "changes": POINTS[name], "parameters": mark, **point}
        write_json(OUTPUT, {**recorded(), key: row})
        shutil.rmtree(SCRATCH / "when-learning-pays" / f"{name}-{seed}")
    return failed


def recorded() -> dict[str, Any]:
    """All finished points, by name and seed."""
    return read_json(OUTPUT) if OUTPUT.exists() else {}


def measure(folder: Path, changes: dict[str, Any], has_time: Callable[[], bool]) -> dict[str, Any] | None:
    """One point in a copy of its own; None where the time ran out."""
    if not has_time():
        return None
    prepare(folder.resolve(), changes)
    for target in TARGETS:
        if not has_time():
            return None
        dvc(folder.resolve(), "repro", target)
    return collected(folder)


def prepare(folder: Path, changes: dict[str, Any]) -> None:
    """Copy the project, over an unfinished copy if there is one, with this point's parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_project(folder)
    params = merged(yaml.safe_load((ROOT / "params.yaml").read_text()), changes)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def collected(folder: Path) -> dict[str, Any]:
    """What a finished copy says of its pair and of every method at the headline budget."""
    pair, head = (read_json(folder / path) for path in ("models/pair.json", "models/heads/logistic/metrics.json"))
    reports = {path.stem: read_json(path) for path in sorted((folder / "reports/calibration").rglob("*.json"))}
    strict = reports[STRICT]["settings"][0]
    return {
        "budget": reports[STRICT]["headline_budget"],
        "target_accuracy": pair["target"]["accuracy"],
        "draft_accuracy": pair["draft"]["accuracy"],
        "strict_accuracy": strict["accuracy"],
        "ap": head["ap"],
        "methods": {name: line(report, strict["mean_accepted_length"]) for name, report in reports.items()},
    }


if __name__ == "__main__":
    run(main)
