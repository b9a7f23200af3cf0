"""What a study shows beside its table: what its labels cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gistgate.files import read_json
from pipeline.labels.cost import REPORTS as COSTS
from pipeline.report.markdown import table

LABELS, PASSES = "labels.json", "passes"
"""File of a study's published results, and its entry."""
COST = ("pass", "labels", "labels per hour", "rollouts per label", "rollout tokens per label", "idle slots, %")


def costs_in(reports: Path) -> dict[str, Any]:
    """What the passes of `collect` and `label` cost, by pass; those that made no label are left out."""
    found = {path.stem: read_json(path) for path in sorted((reports / COSTS.name).glob("*.json"))}
    return {name: cost for name, cost in found.items() if cost["labels"]}


def label_costs(results: Path) -> Iterator[str]:
    """The table of a folder of published results, if it has this file."""
    if (path := results / LABELS).exists():
        rows = [cost_line(name, cost) for name, cost in read_json(path)[PASSES].items()]
        yield f"What its labels cost:\n\n{table(COST, rows, numbers=True)}"


def cost_line(name: str, cost: dict[str, Any]) -> list[str]:
    """One pass."""
    per_label = [f"{cost[key]:.1f}" for key in ("rollouts_per_label", "rollout_tokens_per_label")]
    share = cost["idle_share_of_slots"]
    idle = "–" if share is None else f"{100 * share:.0f}"  # a serving engine does not say it
    return [f"`{name}`", str(cost["labels"]), f"{cost['labels_per_hour']:.0f}", *per_label, idle]
