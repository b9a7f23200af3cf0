"""Figures of the page about segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from pipeline.report.figures import STYLE, looks, save


def draw_all(summary: dict[str, Any], folder: Path) -> None:
    """Every figure into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        save(reliability(summary["probes"]), folder / "reliability.png")
        if summary["study"]:
            save(study(summary["study"]), folder / "when.png")


def reliability(probes: dict[str, Any]) -> Figure:
    """Predicted against found shares on the draft's segments of unseen problems, for every pooling and loss."""
    figure, axes = plt.subplots(1, len(probes), figsize=(8, 3.6), sharey=True, layout="constrained")
    for axis, (role, trials) in zip(axes, probes.items(), strict=True):
        curves = {name: one["draft"]["reliability"] for name, one in trials.items()}
        look = looks(curves)
        for name, curve in curves.items():
            colour, marker = look[name]
            x, y = ([point[side] for point in curve] for side in ("predicted", "found"))
            axis.plot(x, y, color=colour, marker=marker, markersize=4, linewidth=1, label=name)
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        axis.set(title=f"{role} probe", xlabel="semantic probability, predicted")
    axes[0].set_ylabel("found")
    axes[-1].legend(fontsize=7)
    return figure


def study(found: dict[str, Any]) -> Figure:
    """Speed against strict tokens by the share of accepted segments."""
    drafts = found["by_draft"]
    figure, axes = plt.subplots(1, len(drafts), figsize=(9, 3.2), sharey=True, layout="constrained")
    for axis, (draft, one) in zip(axes, drafts.items(), strict=True):
        look = looks(one["segments"])
        for kind, by_rate in one["segments"].items():
            colour, marker = look[kind]
            x, y = [float(rate) for rate in by_rate], [point["faster"]["mean"] for point in by_rate.values()]
            low = [point["faster"]["low"] for point in by_rate.values()]
            high = [point["faster"]["high"] for point in by_rate.values()]
            axis.plot(x, y, color=colour, marker=marker, markersize=4, label=kind)
            axis.fill_between(x, low, high, color=colour, alpha=0.15)
        axis.axhline(1, color="0.6", linewidth=0.8)
        axis.set(title=f"{draft}, strict tau {one['tau']:.2f}", xlabel="share of accepted segments")
    axes[0].set_ylabel("times as fast as strict tokens")
    axes[0].legend(fontsize=7)
    return figure
