"""Figure and table of the study `when_learning_pays`, and the finished runs that are published already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gistgate.files import read_json
from pipeline.report.figures import STYLE, looks, plt

PUBLISHED = {
    "similar": "docs/results/table/summary.json",
    "neutral": "docs/results/beside/neutral.json",
    "similar, seed 2": "docs/results/beside/seed-2.json",
}
"""Full-sized runs, by what they are called in the figure; the first one compares all rules, the others the core."""
BESIDE = Path("benchmarks/results/when-learning-pays")
"""Calibration files of further methods, made later in the folders of published runs, by the name of the run's file."""
METHODS = ("autojudge", "ensemble", "prob", "prob-ratio", "typical", "kl-judge", "fly", "exact")
"""What is shown, the learned gate first."""


def published() -> list[dict[str, Any]]:
    """The published runs as points."""
    found = []
    for name, path in PUBLISHED.items():
        summary = read_json(Path(path))
        tau = summary["methods"]["exact"]["mean_accepted_length"]
        later = {file.stem: line(read_json(file), tau) for file in sorted((BESIDE / Path(path).stem).glob("*.json"))}
        row = {"point": name, "seed": summary["seed"], "budget": summary["headline_budget"]}
        found.append({**row, "methods": {**summary["methods"], **later}, "published": path})
    return found


def line(report: dict[str, Any], strict_tau: float) -> dict[str, Any]:
    """One method at its certified setting, on the calibration prompts; without a certificate it runs strictly."""
    budget = report["headline_budget"]
    verdict = next(one for key, one in report["budgets"].items() if float(key) == budget)
    kept = [one for one in report["settings"] if (one["knob"], one["fixed"]) == (verdict["knob"], verdict["fixed"])]
    shown = kept[0] if verdict["certified"] else {"mean_accepted_length": strict_tau, "loss": 0.0, "n": verdict["n"]}
    return {
        "knob": verdict["knob"],
        "fixed": verdict["fixed"],
        "certified_bound": (0.0 if report["knob"] is None else verdict["bound"]) if verdict["certified"] else None,
        "refusal": verdict["refusal"],
        "mean_accepted_length": shown["mean_accepted_length"],
        "loss": shown["loss"],
        "n": shown["n"],
    }


def label(point: dict[str, Any]) -> str:
    """How a point is called below the axis."""
    if point.get("published"):
        return f"{point['point']}\n(published)"
    return point["point"] if point["seed"] == 1 else f"{point['point']}\nseed {point['seed']}"


def lead(point: dict[str, Any]) -> float:
    """Mean accepted length of the gate over that of the best rule that needs no training (strict decoding included)."""
    tau = {name: row["mean_accepted_length"] for name, row in point["methods"].items()}
    return float(tau["autojudge"] / max(tau[name] for name in METHODS[1:] if name in tau))


def strict_accuracy(point: dict[str, Any]) -> float:
    """Share of the prompts that strict decoding solves."""
    return float(point.get("strict_accuracy") or point["methods"]["exact"]["accuracy"])


def table(points: Sequence[dict[str, Any]]) -> str:
    """Mean accepted length of every method at each point, the certified bound in points behind it, in Markdown."""
    head = ["point", "solved", *METHODS, "gate / best other"]
    rows = [
        [
            label(point).replace("\n", " "),
            f"{100 * strict_accuracy(point):.0f}",
            *(cell(point["methods"].get(name)) for name in METHODS),
            f"{lead(point):.2f}",
        ]
        for point in points
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def cell(row: dict[str, Any] | None) -> str:
    """One method at one point."""
    if row is None:
        return "–"
    bound = "none" if row["certified_bound"] is None else f"{100 * row['certified_bound']:.1f}"
    return f"{row['mean_accepted_length']:.2f} ({bound})"


def draw(points: Sequence[dict[str, Any]]) -> plt.Figure:
    """Mean accepted length of every method at each point; below it the gate's lead.

    Full-sized published runs have hollow marks: their certificates come from more prompts than the study's.
    """
    look, places = looks(METHODS), range(len(points))
    with plt.rc_context(STYLE):
        size = (max(6.0, 1.5 + 0.8 * len(points)), 5.5)
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=size, sharex=True, height_ratios=(3, 1), layout="constrained"
        )
        for name in METHODS:
            shown = [(at, point["methods"][name], point) for at, point in enumerate(points) if name in point["methods"]]
            for order, (at, row, point) in enumerate(shown):
                colour, marker = look[name]
                face = "none" if point.get("published") else colour
                upper.plot(
                    at, row["mean_accepted_length"], marker, color=colour, mfc=face, label=None if order else name
                )
        lower.bar(places, [lead(point) - 1 for point in points], bottom=1, width=0.5, color="0.6")
        lower.axhline(1, color="0.3", linewidth=0.8)
        budgets = sorted({point["budget"] for point in points})
        upper.set(ylabel="tokens per target forward")
        upper.set_title(f"loss budget {' or '.join(f'{b:.0%}' for b in budgets)}, certified where possible")
        lower.set(ylabel="gate / best other")
        lower.set_xticks(places, [label(point) for point in points], rotation=45, ha="right")
        upper.legend(ncols=2, fontsize=8)
    return figure
