"""The figure of `pipeline.studies.certify.coverage`: what certificates keep of their promise, and what they cost."""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binomtest

from gistgate.certificates.planning import CERTIFIES
from pipeline.report.figures import MARKERS, STYLE

SHOWN_DISCORDANCE = 0.05
"""Discordance of the right panel."""


def draw(report: dict[str, Any]) -> Figure:
    """Left: share of calibrations on the boundary that claim nothing false. Right: prompts by budget."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
        boundary = [case for case in report["cases"] if case["kind"] == "boundary"]
        for place, bound in enumerate(CERTIFIES):
            look = {"color": f"C{place}", "marker": MARKERS[place], "label": bound}
            draw_shares(left, boundary, bound, report["resamples"], (place - 2) * 0.12, look)
            rows = [row for row in report["needed_prompts"] if row["discordance"] == SHOWN_DISCORDANCE]
            right.plot([100 * row["budget"] for row in rows], [row["prompts"][bound] for row in rows], **look)
        left.axhline(100 * report["confidence"], color="grey", ls=":", lw=1)
        left.set_xlabel("budget = true loss, points")
        left.set_ylabel("calibrations without a false certificate, %")
        left.set_title(f"{report['resamples']} calibrations each, 5 % discordant pairs, 95 % intervals", fontsize=8)
        right.set_xscale("log")
        right.set_yscale("log")
        right.set_xticks([1, 2, 3, 5], ["1", "2", "3", "5"], minor=False)
        right.set_xticks([], minor=True)
        right.set_xlabel("budget, points")
        right.set_ylabel("prompts")
        right.set_title("prompts that a certificate needs: no loss, 5 % discordant pairs", fontsize=8)
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
        return figure


def draw_shares(
    axes: Axes, cases: list[dict[str, Any]], bound: str, resamples: int, shift: float, look: dict[str, Any]
) -> None:
    """One bound's shares with exact intervals, moved sideways so that the bounds do not hide each other."""
    shares = [case["bounds"][bound]["share_holding"] for case in cases]
    ends = [binomtest(round(share * resamples), resamples).proportion_ci() for share in shares]
    below = [100 * (share - end.low) for share, end in zip(shares, ends, strict=True)]
    above = [100 * (end.high - share) for share, end in zip(shares, ends, strict=True)]
    budgets = [100 * case["budget"] + shift for case in cases]
    axes.errorbar(budgets, [100 * share for share in shares], yerr=[below, above], ls="none", ms=4, **look)
