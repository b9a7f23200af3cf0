"""The paragraph at the head of the README: what the gate writes, and how far it leads, from the published results."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from gistgate.files import read_json
from pipeline.report.leaders import best, fastest
from pipeline.report.results import STRICT
from pipeline.report.tables import excluded, of_seeds, percent, refusal, uncertified

PART = "headline"
"""The part of the README that it fills."""


def headline(results: Path) -> str:
    """The medians over the published seeds, or what the one published run says where there are no seeds."""
    if (results / "seeds.json").exists():
        return over_seeds(read_json(results / "seeds.json"))
    large = results / "table/summary.json"
    return of_one_run(read_json(large if large.exists() else results / "summary.json"))


def over_seeds(found: dict[str, Any]) -> str:
    """Medians and ranges over the seeds whose target is strong enough; the others are named."""
    used = [one for one in found["seeds"].values() if "excluded" not in one]
    if not used:
        return of_seeds(found)
    tau = {name: [one["methods"][name_of(one, name)]["tau"] for one in used] for name in ("gate", "free", STRICT)}
    gate, free, strict = (wide(tau[name]) for name in ("gate", "free", STRICT))
    leads = {unit: wide([one["lead"][unit]["ratio"] for one in used]) for unit in ("tau", "time")}
    text = (
        f"{terms(used[0]['budget'], used[0]['confidence'])}, the gate writes {gate} tokens per target forward pass, "
        f"over {len(used)} seeds of pair, prompts and labels (the median, and the range behind it). The lossless rule "
        f"writes {strict}, and the best rule that needs no training writes {free}. The gate's mean accepted length is "
        f"{leads['tau']} times that of this rule, and its speed {leads['time']} times that of the fastest such rule."
    )
    return " ".join([text, *uncertified(found), *excluded(found)])


def name_of(seed: dict[str, Any], role: str) -> str:
    """The method that plays a role in a seed's lead in length; strict decoding is itself."""
    return str(seed["lead"]["tau"].get(role, role))


def wide(values: list[float]) -> str:
    """Median and range."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def of_one_run(summary: dict[str, Any]) -> str:
    """The same of one published run."""
    methods = summary["methods"]
    gate, free, quick = best(methods, gate=True), best(methods, gate=False), fastest(methods)
    tau = {name: methods[name]["mean_accepted_length"] for name in (gate, free, STRICT)}
    time = {name: methods[name]["speed"]["vs_plain"]["mean"] for name in (gate, quick)}
    length, speed = tau[gate] / tau[free], time[gate] / time[quick]
    return (
        f"{terms(summary['headline_budget'], methods[gate]['confidence'])}, the gate writes {tau[gate]:.2f} tokens per "
        f"target forward pass on seed {summary['seed']}. The lossless rule writes {tau[STRICT]:.2f}, and the best rule "
        f"that needs no training, `{free}`, writes {tau[free]:.2f}. The gate's mean accepted length is {length:.2f} "
        f"times that of this rule, and its speed {speed:.2f} times that of the fastest such rule, `{quick}`."
        f"{refusal(gate, methods[gate])} One seed does not stand for a world."
    )


def terms(budget: float, confidence: float) -> str:
    """Under which certificate the methods run."""
    return (
        f"With a certified loss of at most {percent(budget)} points of accuracy at {100 * confidence:.0f} % confidence"
    )
