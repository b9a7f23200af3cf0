"""The figures of the report, as matplotlib objects; the same input gives the same bytes."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gistgate.core.files import write_atomic
from pipeline.report.summary import Results, Summary

matplotlib.use("Agg")

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "font.size": 9,
}
MARKERS = "osD^vPX*<>"
LOSS = "accuracy lost against strict, points"
DESCRIBED = {
    "frontier": "Accuracy lost against tokens per target forward, for every tested setting",
    "speed": "Accuracy lost on the test prompts against speed, with intervals",
    "reliability": "Predicted against observed probability that the meaning is kept",
    "accepted_length": "Share of rounds by the number of accepted draft tokens",
}
"""Figures in words, for readers who do not see them."""

Looks = dict[str, tuple[str, str]]  # colour and marker by method or head: the same in every figure


def looks(names: Iterable[str]) -> Looks:
    """A look for each name, in order."""
    colours = [f"C{place}" for place in range(10)]
    return dict(zip(names, zip(cycle(colours), cycle(MARKERS))))


def draw_all(summary: Summary, rows: list[dict[str, Any]], results: Results) -> dict[str, Figure]:
    """Every figure under its file name."""
    look = looks(summary["methods"])
    with plt.rc_context(STYLE):
        return {
            "frontier.png": frontier_figure(rows, summary, look),
            "speed.png": speed_figure(summary, look),
            "reliability.png": reliability_figure(results.curves),
            "accepted_length.png": length_figure(results.evaluation, look),
        }


def new_axes(width: float, height: float, x: str, y: str) -> tuple[Figure, Any]:
    """An empty figure, in inches, with the names of what its axes show."""
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that carries no date and no version, whole or not at all, then forget the
    figure.
    """
    write_atomic(
        path,
        lambda part: figure.savefig(part, dpi=140, metadata={"Software": None}, format="png"),
    )
    plt.close(figure)


def frontier_figure(rows: list[dict[str, Any]], summary: Summary, look: Looks) -> Figure:
    """Accuracy lost against tokens per target forward, a line per method and variant; certified
    settings are filled.
    """
    figure, axes = new_axes(6.4, 4.2, "tokens per target forward (tau)", LOSS)
    for name, method in summary["methods"].items():
        colour, marker = look[name]
        settings = [row for row in rows if row["method"] == name]
        if not settings:  # nothing to calibrate: one point, lossless by construction
            axes.plot([method["mean_accepted_length"]], [0], marker, color=colour, ms=7, label=name)
            continue
        lines = defaultdict(list)
        for row in settings:
            if row["split"] == "development":
                lines[repr(row["fixed"])].append(row)
        for line in lines.values():
            line.sort(key=lambda row: row["mean_accepted_length"])
            axes.plot(*points(line), ".-", color=colour, alpha=0.35, lw=1)
        for row in settings:
            if row["split"] == "calibration":
                face = colour if row["certified_budgets"] else "none"
                axes.plot(*points([row]), marker, color=colour, markerfacecolor=face, ms=7)
        axes.plot([], [], marker + "-", color=colour, label=name)
    axes.axhline(100 * summary["headline_budget"], color="grey", ls=":", lw=1)
    axes.set_title(
        "lines: development prompts; markers: calibration prompts, filled when certified",
        fontsize=8,
    )
    axes.legend()
    return figure


def points(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """tau and loss in points."""
    return [row["mean_accepted_length"] for row in rows], [100 * row["loss"] for row in rows]


def speed_figure(summary: Summary, look: Looks) -> Figure:
    """Accuracy lost on the test split against speed, with both intervals, at the headline
    budget.
    """
    figure, axes = new_axes(6.4, 4.2, "speed against plain decoding, same engine", LOSS)
    for name, method in summary["methods"].items():
        colour, marker = look[name]
        if not method["speed"]:
            continue
        speed = method["speed"]["vs_plain"]
        change = method["accuracy_difference"]
        below = 100 * (change["high"] - change["mean"])
        above = 100 * (change["mean"] - change["low"])
        axes.errorbar(
            speed["mean"],
            -100 * change["mean"],
            xerr=[[speed["mean"] - speed["low"]], [speed["high"] - speed["mean"]]],
            yerr=[[below], [above]],
            marker=marker,
            ms=6,
            capsize=2,
            color=colour,
            label=name,
            ls="none",
        )
    axes.axhline(100 * summary["headline_budget"], color="grey", ls=":", lw=1)
    axes.axvline(1, color="grey", lw=0.5)
    axes.legend()
    return figure


def reliability_figure(curves: dict[str, dict[str, Any]]) -> Figure:
    """Predicted against observed probability that the meaning is kept, on problems no head has
    seen.
    """
    figure, axes = new_axes(4.4, 4.2, "predicted P(meaning kept)", "observed share kept")
    axes.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    for name, (colour, marker) in looks(curves).items():
        bins = curves[name]["reliability"]
        predicted = [entry["predicted"] for entry in bins]
        observed = [entry["observed"] for entry in bins]
        axes.plot(predicted, observed, marker + "-", color=colour, ms=4, label=name)
    axes.legend()
    return figure


def length_figure(evaluation: dict[str, dict[str, Any]], look: Looks) -> Figure:
    """How many draft tokens a round accepts, as a share of rounds, one line per method."""
    figure, axes = new_axes(
        6.4,
        3.6,
        "draft tokens accepted in a round",
        "share of rounds, per cent",
    )
    for name, (colour, marker) in look.items():
        counts = evaluation[name]["statistics"]["histogram"]
        total = sum(counts.values()) or 1
        lengths = range(evaluation[name]["block"] + 1)
        share = [100 * counts.get(str(length), 0) / total for length in lengths]
        axes.plot(lengths, share, marker + "-", color=colour, ms=4, label=name)
    axes.legend()
    return figure
