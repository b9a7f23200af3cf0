"""The figures of the report, as matplotlib objects; the same input gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.results import Results
from pipeline.summary import Summary

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": 9,
    "svg.hashsalt": "gistgate",
}
MARKERS = "osD^vPX*<>"


def draw_all(summary: Summary, rows: list[dict[str, Any]], results: Results) -> dict[str, Figure]:
    """Every figure under its file name."""
    with plt.rc_context(STYLE):
        return {
            "frontier.png": frontier_figure(rows, summary["headline_budget"]),
            "speed.png": speed_figure(summary),
            "reliability.png": reliability_figure(results.curves),
            "accepted_length.png": length_figure(results.evaluation),
        }


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that carries no date and no version, then forget the figure."""
    figure.savefig(path, dpi=140, metadata={"Software": None}, format="png")
    plt.close(figure)


def frontier_figure(rows: list[dict[str, Any]], budget: float) -> Figure:
    """Accuracy lost against tokens per target forward, one line per method; certified settings are filled."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for place, name in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = [row for row in rows if row["method"] == name]
        line = sorted(
            (row for row in own if row["split"] == "development"), key=lambda row: row["mean_accepted_length"]
        )
        colour = f"C{place % 10}"
        axes.plot(*points(line), "-", color=colour, alpha=0.35, lw=1)
        marker = MARKERS[place % len(MARKERS)]
        for row in (row for row in own if row["split"] == "calibration"):
            face = colour if row["certified_budgets"] else "none"
            axes.plot(*points([row]), marker, color=colour, markerfacecolor=face, ms=7)
        axes.plot([], [], marker + "-", color=colour, label=name)
    axes.axhline(100 * budget, color="grey", ls=":", lw=1)
    axes.set_xlabel("tokens per target forward (tau)")
    axes.set_ylabel("accuracy lost against strict, points")
    axes.set_title("lines: development prompts; markers: calibration prompts, filled when certified", fontsize=8)
    axes.legend()
    return figure


def points(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """tau and loss in points."""
    return [row["mean_accepted_length"] for row in rows], [100 * row["loss"] for row in rows]


def speed_figure(summary: Summary) -> Figure:
    """Accuracy lost on the test split against speed, with both intervals, at the headline budget."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for place, (name, method) in enumerate(summary["methods"].items()):
        speed, change = method["speed"]["vs_plain"], method["accuracy_difference"]
        axes.errorbar(
            speed["mean"],
            -100 * change["mean"],
            xerr=[[speed["mean"] - speed["low"]], [speed["high"] - speed["mean"]]],
            yerr=[[100 * (change["high"] - change["mean"])], [100 * (change["mean"] - change["low"])]],
            marker=MARKERS[place % len(MARKERS)], ms=6, capsize=2, color=f"C{place % 10}", label=name, ls="none",
        )  # fmt: skip
    axes.axhline(100 * summary["headline_budget"], color="grey", ls=":", lw=1)
    axes.axvline(1, color="grey", lw=0.5)
    axes.set_xlabel("speed against plain decoding, same engine")
    axes.set_ylabel("accuracy lost against strict, points")
    axes.legend()
    return figure


def reliability_figure(curves: dict[str, dict[str, Any]]) -> Figure:
    """Predicted against observed probability that the meaning is kept, on problems no head has seen."""
    figure, axes = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    for place, (name, curve) in enumerate(curves.items()):
        bins = curve["reliability"]
        predicted, observed = [b["predicted"] for b in bins], [b["observed"] for b in bins]
        axes.plot(predicted, observed, MARKERS[place % len(MARKERS)] + "-", ms=4, label=name)
    axes.set_xlabel("predicted P(meaning kept)")
    axes.set_ylabel("observed share kept")
    axes.legend()
    return figure


def length_figure(evaluation: dict[str, dict[str, Any]]) -> Figure:
    """How many draft tokens a round accepts, as a share of rounds, one line per method."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for place, (name, found) in enumerate(evaluation.items()):
        if found["block"]:
            length_line(axes, name, found["statistics"]["histogram"], found["block"], place)
    axes.set_xlabel("draft tokens accepted in a round")
    axes.set_ylabel("share of rounds, per cent")
    axes.legend()
    return figure


def length_line(axes: Axes, name: str, histogram: dict[str, int], block: int, place: int) -> None:
    """One method's histogram."""
    total = sum(histogram.values()) or 1
    share = [100 * histogram.get(str(length), 0) / total for length in range(block + 1)]
    axes.plot(range(block + 1), share, MARKERS[place % len(MARKERS)] + "-", ms=4, label=name)
