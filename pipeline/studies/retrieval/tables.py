"""Drafter by rule, for docs/retrieval.md and the report: made from the summary alone."""

from __future__ import annotations

from typing import Any

from pipeline.report.markdown import table
from pipeline.report.tables import percent, speed

REFERENCES = {"plain": "plain", "lookup-exact": "lookup + exact", "corpus-exact": "corpus + exact"}
"""What speeds are shown against: methods of the benchmark, and their names in the table."""
HEAD = (
    "drafter + rule",
    "K",
    *(f"speed to {title}" for title in REFERENCES.values()),
    "tau",
    "certified",
    "bound, points",
    "difference, points",
)


def content(summary: dict[str, Any]) -> str:
    """What stands between the page's markers."""
    found = parts(summary)
    soft = [one.get("certificate", {}).get("certified", False) for one in summary["methods"]]
    rows = [(f"**{row[0]}**" if bold else row[0], *row[1:]) for row, bold in zip(found["rows"], soft, strict=True)]
    return f"{found['caption']}\n\n{table(HEAD, rows)}\n\n{found['datastore']}"


def parts(summary: dict[str, Any]) -> dict[str, Any]:
    """What is shown, piece by piece."""
    return {
        "caption": caption(summary),
        "head": HEAD,
        "rows": [cells(one) for one in summary["methods"]],
        "datastore": datastore(summary["datastore"]),
    }


def cells(one: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table; a lossless method has nothing to certify, and no difference."""
    name = f"{one['drafter']} + {one['rule']}"
    # A reference has no speed against itself.
    speeds = [speed(one[f"vs_{key}"]) if f"vs_{key}" in one else "1" for key in REFERENCES]
    start = (str(one["block"]), *speeds, f"{one['tau']:.2f}")
    if "certificate" not in one:
        return (name, *start, "–", "–", "–")
    found = one["certificate"]
    change = one["difference"]
    difference = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * change[end] for end in ("mean", "low", "high")))
    if not found["certified"]:
        return (name, *start, "nothing, runs strictly", "–", difference)
    settings = ", ".join(f"{key} {value}" for key, value in found["settings"].items())
    return (name, *start, settings, f"{100 * found['bound']:.2f}", difference)


def caption(summary: dict[str, Any]) -> str:
    """What was measured on what."""
    threads = summary["machine"]["threads"]
    return (
        f"`make retrieval` on the pair `{summary['pair']}`: speed over {summary['speed_prompts']} test prompts, each "
        f"decoded {summary['repeats']} times by every method, one row at a time in one process with {threads} "
        f"thread{'s' * (threads != 1)} ({summary['plain_tokens_per_second']:.0f} tokens per second plain). `bound` is "
        f"the certified loss on calibration prompts for a budget of {percent(summary['headline_budget'])} points, "
        f"`difference` the accuracy minus that of plain decoding on {summary['test_prompts']} test prompts. Brackets "
        "are 90 % intervals over prompts. Methods without a difference are lossless."
    )


def datastore(found: dict[str, Any]) -> str:
    """Size and build rate of the store."""
    return (
        f"Datastore: {found['keys']} keys of {found['key_size']} dimensions from {found['prompts']} training prompts, "
        f"{found['bytes'] / 1e6:.1f} MB, built at {found['keys_per_second']:.0f} keys per second."
    )
