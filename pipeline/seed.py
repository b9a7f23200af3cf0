"""One seed of everything in a copy of the project: the core, and the best rules of the large table without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import read_json
from gistgate.rules import RULES
from pipeline.common.code import CERTIFYING, STAGES
from pipeline.common.paths import PAIR_REPORT, PARAMS, REPORTS
from pipeline.params import read_params
from pipeline.report.gathered import copy, own_draw
from pipeline.report.leaders import asks_gate, candidates
from pipeline.smoke import ROOT, dvc, merged
from pipeline.stages.prompts import of_the_world

RIVALS = ("ensemble", "sense", "regret-budget")
"""Rules without training that the core does not calibrate."""
PLACE = 99
"""Among the draws that runs in copies have; the study of when learning pays counts from 0."""
MODULES = (*CERTIFYING, STAGES + "evaluate", STAGES + "benchmark", "pipeline.report.summary", "pipeline.seed")
"""What makes the results of a seed."""


def run_seed(seed: int, place: Path, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What one seed found, or why it is excluded.

    Args:
        seed: of everything.
        place: where the copy of the project lies.
        changes: what differs from params.yaml besides.

    Raises:
        UserError: a stage failed for another reason than a weak target.
    """
    copy(place, merged(dict(changes or {}), changes_of(seed)), MODULES)
    print(f"seed {seed} in {place}", flush=True)
    try:
        dvc(place, "repro")
    except UserError:
        reason = too_weak(place)
        if reason is None:
            raise
        return {"excluded": reason}
    return compared(read_json(place / REPORTS / "summary.json"))


def changes_of(seed: int) -> dict[str, Any]:
    """What differs from params.yaml for a seed: the rules RIVALS, with the settings that they declare, come in.

    In the embedded world, which has no end of problems, seeds have calibration prompts that no other run judges.
    """
    free = {
        name: {
            "rule": name,
            "drafter": "model",
            "variants": [dict(variant) for variant in RULES[name].variants],
            "knob": RULES[name].knob,
            "grid": list(RULES[name].grid),
        }
        for name in RIVALS
    }
    draw = {"prompts": {"draw": own_draw(PLACE)}} if of_the_world(read_params(ROOT / PARAMS)) else {}
    return {"seed": seed, "methods": {"free": free}, **draw}


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
            "certificates": method["certificates"],
            "gate": asks_gate(method),
        }
        for name, method in summary["methods"].items()
    }
    rivals = {gate: candidates(summary["methods"], gate) for gate in (True, False)}
    leads = {unit: lead(lines, rivals, unit) for unit in ("tau", "time")}
    confidence = next(iter(summary["methods"].values()))["confidence"]
    return {"methods": lines, "lead": leads, "budget": summary["headline_budget"], "confidence": confidence}


def lead(lines: Mapping[str, Mapping[str, Any]], rivals: Mapping[bool, list[str]], unit: str) -> dict[str, Any]:
    """How far the best gate is ahead of the best rule without training, each the best of its kind in this unit."""
    gate, free = (max(rivals[asks], key=lambda name: float(lines[name][unit])) for asks in (True, False))
    return {"gate": gate, "free": free, "ratio": lines[gate][unit] / lines[free][unit]}
