"""What benchmarks.drafting says of the seconds and counts that it measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.bench import ratios
from benchmarks.drafting_choices import costs_of
from benchmarks.drafting_methods import Comparison
from benchmarks.ladder import TEXTS
from gistgate.observing.intervals import ratio_of_sums
from gistgate.request.statistics import Statistics

PLAIN, GENERATE, ASSISTED = "plain", "generate", "assisted"
PARTS = ("draft", "verify", "accept")


def figures(times: Any, compared: Comparison) -> dict[str, Any]:
    """Rates and ratios of every contender; of ours also tau, parts, the ratio to the step before, and the limit.

    The limit is that of one row alone, where the costs were measured.
    """
    found = ratios(times, (PLAIN, GENERATE, ASSISTED))
    for method, taken in compared.steps.items():
        before = None
        for step in taken:
            name = f"{method}: {step}"
            entry = sum((Statistics.from_dict(one) for one in times[name]["counted"]), Statistics())
            drafted = entry.draft_forwards / entry.forwards
            found[name] |= {"tau": entry.mean_accepted_length, "draft_forwards": drafted, "parts": parts(entry)}
            if compared.batch == 1:
                found[name]["limit"] = limit(found[name], step, compared)
            if before is not None:
                found[name]["vs_before"] = ratio_of_sums(times[before]["seconds"], times[name]["seconds"]).as_dict()
            before = name
    return found


def limit(entry: Mapping[str, Any], step: str, compared: Comparison) -> float:
    """tau / (v(n) + n c) for n draft forwards of a round; with texts v(K), since their tokens need no forward."""
    costs = costs_of(compared.folder, compared.ladder.draft_at(step))
    read = entry["block"] if step == TEXTS else entry["draft_forwards"]
    found: float = entry["tau"] / (costs.verification(read) + entry["draft_forwards"] * costs.draft)
    return found


def parts(counted: Statistics) -> dict[str, float]:
    """Shares of the seconds of all rounds: drafting, verification, judging, and the rest."""
    shares = {part: counted.seconds.get(part, 0.0) / counted.seconds["total"] for part in PARTS}
    return {**shares, "rest": 1 - sum(shares.values())}
