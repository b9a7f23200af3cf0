"""Figures of `benchmarks.limit`, `benchmarks.block` and `benchmarks.shapes`, from what they write."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from pipeline.report.figures import STYLE


def limit_figure(payload: dict[str, Any]) -> Figure:
    """Speed that the parts allow and that whole rounds attain, in plain steps, of every engine and method."""
    rows = [
        (f"{name}, {engine}", entry) for engine, found in payload["engines"].items() for name, entry in found.items()
    ]
    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(figsize=(6.5, 0.9 + 0.4 * len(rows)), layout="constrained")
        names = [name for name, _ in rows]
        axes.barh(names, [entry["possible"] for _, entry in rows], color="0.85", label="possible: tau / (v + K c)")
        axes.barh(names, [entry["attained"] for _, entry in rows], height=0.45, label="attained")
        for place, (_, entry) in enumerate(rows):
            axes.text(0.03, place, f"{entry['reached']:.2f}", va="center", color="white", fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("speed in plain steps of the same engine; in the bar the share reached")
        axes.legend(fontsize=7)
    return drawn


def block_figure(payload: dict[str, Any]) -> Figure:
    """Every method's speed at each K against its own fastest one."""
    with plt.rc_context(STYLE):
        drawn, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        for place, (name, entry) in enumerate(payload["methods"].items()):
            found = sorted((int(k), ratio) for k, ratio in entry["vs_fastest"].items())
            ends = [[abs(ratio[end] - ratio["mean"]) for _, ratio in found] for end in ("low", "high")]
            shifted = [k + 0.08 * place for k, _ in found]  # intervals beside, not over each other
            means = [ratio["mean"] for _, ratio in found]
            axes.errorbar(shifted, means, ends, marker="o", ms=3, capsize=2, lw=1, label=name)
        axes.set_xlabel("K")
        axes.set_ylabel("speed against the own fastest K, 90 %")
        axes.legend(fontsize=7)
    return drawn


def shapes_figure(payload: dict[str, Any]) -> Figure:
    """Tokens per second of every contender, a panel for each pair of shapes."""
    pairs = payload["pairs"]
    with plt.rc_context(STYLE):
        drawn, panels = plt.subplots(
            1, len(pairs), figsize=(1 + 5 * len(pairs), 3.5), layout="constrained", squeeze=False
        )
        for axes, (name, found) in zip(panels[0], pairs.items(), strict=True):
            rates = sorted((entry["tokens_per_second"], label) for label, entry in found["contenders"].items())
            axes.barh([label for _, label in rates], [rate for rate, _ in rates])
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("tokens per second, batch 1")
    return drawn
