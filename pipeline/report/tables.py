"""The results table, once as Markdown for the README and once as HTML for the report, from the same cells."""

from __future__ import annotations

from html import escape
from typing import Any

from gistgate.rules import RULES

HEADER = (
    "method", "K", "knob", "bound", "accuracy", "difference", "tau", "loose/100",
    "vs plain", "vs strict", "vs assisted",
)  # fmt: skip
RIGHT = len(HEADER) - 1
"""Columns of numbers, behind the name."""


def rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """One tuple of texts per method."""
    return [cells(name, method) for name, method in summary["methods"].items()]


def cells(name: str, method: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table: shares in per cent, differences in points."""
    bound, change = method["certified_bound"], method["accuracy_difference"]
    return (
        name,
        str(method["block"]),
        "–" if method["knob"] is None else f"{method['knob']:g}",
        "not certified" if bound is None else f"{100 * bound:.1f}",
        percent(method["accuracy"]),
        f"{100 * change['mean']:+.1f} [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]",
        f"{method['mean_accepted_length']:.2f}",
        f"{method['loose_per_100']:.1f}",
        *(speed(method["speed"][key]) for key in ("vs_plain", "vs_strict", "vs_assisted")),
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def speed(ratio: dict[str, float]) -> str:
    """A ratio with its interval."""
    return f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def markdown(summary: dict[str, Any]) -> str:
    """The table between the README's markers, with the line that says what it is about."""
    lines = [HEADER, ("---", *["---:"] * RIGHT), *rows(summary)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{caption(summary)}\n\n{table}"


def caption(summary: dict[str, Any]) -> str:
    """Which run the table shows."""
    n = next(iter(summary["methods"].values()))["n"]
    return (
        f"Pair `{summary['pair']}`, task `{summary['task']}`, seed {summary['seed']}, {n} test prompts, budget "
        f"{percent(summary['headline_budget'])} points; plain decoding answers "
        f"{percent(summary['plain']['accuracy'])} %."
    )


BESIDE = (
    "run",
    "plain",
    "strict tau",
    "best without training",
    "its tau",
    "learned",
    "its tau",
    "its difference",
    "bound",
)


def beside(summaries: dict[str, dict[str, Any]]) -> str:
    """One line per run: the learned gate against the best training-free rule and against strict."""
    lines = [BESIDE, ("---", *["---:"] * (len(BESIDE) - 1))]
    lines += [beside_line(name, summary) for name, summary in summaries.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def beside_line(name: str, summary: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one run; the best of a group is the one with the largest tau at its certified setting."""
    methods = summary["methods"]
    asks_gate = {key: "gate" in RULES[method["rule"]].needs for key, method in methods.items()}
    free, learned = (best(methods, [key for key in methods if asks_gate[key] is kind]) for kind in (False, True))
    gate = dict(zip(HEADER, cells(learned, methods[learned]), strict=True))
    return (
        name, percent(summary["plain"]["accuracy"]), cells("exact", methods["exact"])[HEADER.index("tau")],
        free, cells(free, methods[free])[HEADER.index("tau")], learned, gate["tau"], gate["difference"], gate["bound"],
    )  # fmt: skip


def best(methods: dict[str, Any], names: list[str]) -> str:
    """The name of the largest tau."""
    return max(names, key=lambda name: float(methods[name]["mean_accepted_length"]))


def judgements(found: dict[str, Any]) -> str:
    """One line per method: which labelled mismatches it accepts at its certified setting, and how many rightly."""
    lines = [("rule", "accepted", "of these harmful", "precision, %", "recall, %"), ("---", *["---:"] * 4)]
    for name, one in found["methods"].items():
        shares = ["–" if one[key] is None else percent(one[key]) for key in ("precision", "recall")]
        lines.append((name, str(one["accepted"]), str(one["harmful_accepted"]), *shares))
    about = f"{found['mismatches']} labelled mismatches of problems that no head saw, {found['harmless']} harmless:"
    return f"{about}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def html(summary: dict[str, Any]) -> str:
    """The table as HTML."""

    def line(texts: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows(summary))
    return f"<table>\n{line(HEADER, 'th')}\n{body}\n</table>"
