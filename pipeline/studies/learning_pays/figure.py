"""Figure and table of the study `when_learning_pays`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline.report.figures import STYLE, looks, plt

Group = list[dict[str, Any]]
"""The runs of one point, one for each seed."""

METHODS = ("autojudge", "ensemble", "prob", "prob-ratio", "typical", "kl-judge", "fly", "exact")
"""What is shown, the learned gate first."""


def shown(recorded: Mapping[str, dict[str, Any]]) -> list[Group]:
    """Groups of points that differ by their seed alone."""
    names = sorted({point["point"] for point in recorded.values()})
    return [[one for one in recorded.values() if one["point"] == name] for name in names]


def label(group: Group) -> str:
    """How a group is called below the axis."""
    first = group[0]
    return first["point"] if len(group) > 1 or first["seed"] == 1 else f"{first['point']}\nseed {first['seed']}"


def lead(point: dict[str, Any]) -> float:
    """Mean accepted length of the gate over that of the best rule that needs no training (strict decoding included)."""
    tau = {name: row["mean_accepted_length"] for name, row in point["methods"].items()}
    return float(tau["autojudge"] / max(tau[name] for name in METHODS[1:] if name in tau))


def strict_accuracy(point: dict[str, Any]) -> float:
    """Share of the prompts that strict decoding solves."""
    return float(point["strict_accuracy"])


def table(groups: Sequence[Group]) -> str:
    """Median and range over the seeds of every method's mean accepted length, with its certified bound, in Markdown."""
    head = ["point", "seeds", "solved", *METHODS, "gate / best other"]
    rows = [
        [
            label(group).replace("\n", " "),
            str(len(group)),
            spread([100 * strict_accuracy(point) for point in group], ".0f"),
            *(cell([point["methods"][name] for point in group if name in point["methods"]]) for name in METHODS),
            spread([lead(point) for point in group]),
        ]
        for group in groups
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and the range behind it where there is more than one value."""
    ends = f" [{min(values):{form}}, {max(values):{form}}]" if len(values) > 1 else ""
    return f"{median(values):{form}}{ends}"


def cell(rows: Sequence[dict[str, Any]]) -> str:
    """One method at one point: length, and the largest bound in points."""
    if not rows:
        return "–"
    bounds = [100 * row["certified_bound"] for row in rows if row["certified_bound"] is not None]
    without = f"none in {len(rows) - len(bounds)}" if bounds else "none"
    said = ([f"{max(bounds):.1f}"] if bounds else []) + ([without] if len(bounds) < len(rows) else [])
    return f"{spread([row['mean_accepted_length'] for row in rows])} ({', '.join(said)})"


def draw(groups: Sequence[Group]) -> plt.Figure:
    """Mean accepted length of every method at each point, below it the gate's lead: medians, lines for the range."""
    with plt.rc_context(STYLE):
        size = (max(6.0, 1.5 + 0.8 * len(groups)), 5.5)
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=size, sharex=True, height_ratios=(3, 1), layout="constrained"
        )
        draw_lengths(upper, groups)
        draw_leads(lower, groups)
        lower.set_xticks(range(len(groups)), [label(group) for group in groups], rotation=45, ha="right")
    return figure


def draw_lengths(axes: plt.Axes, groups: Sequence[Group]) -> None:
    """A mark for each method at each point."""
    for name, (colour, marker) in looks(METHODS).items():
        title: str | None = name
        for at, group in enumerate(groups):
            if found := [point["methods"][name]["mean_accepted_length"] for point in group if name in point["methods"]]:
                axes.plot(at, median(found), marker, color=colour, label=title)
                axes.vlines(at, min(found), max(found), color=colour, linewidth=1)
                title = None
    budgets = sorted({point["budget"] for group in groups for point in group})
    axes.set(ylabel="tokens per target forward")
    axes.set_title(f"loss budget {' or '.join(f'{b:.0%}' for b in budgets)}, certified where possible")
    axes.legend(ncols=2, fontsize=8)


def draw_leads(axes: plt.Axes, groups: Sequence[Group]) -> None:
    """A bar for the gate's lead at each point."""
    leads = [[lead(point) for point in group] for group in groups]
    axes.bar(range(len(groups)), [median(one) - 1 for one in leads], bottom=1, width=0.5, color="0.6")
    axes.vlines(range(len(groups)), list(map(min, leads)), list(map(max, leads)), color="0.3", linewidth=1)
    axes.axhline(1, color="0.3", linewidth=0.8)
    axes.set(ylabel="gate / best other")
