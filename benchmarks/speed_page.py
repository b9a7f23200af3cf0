"""Write the tables of `benchmarks.speed` into docs/performance.md, between its markers.

python -m benchmarks.speed_page
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench import RESULTS
from benchmarks.drafts_page import interval
from benchmarks.speed import ENGINES
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.entry import run
from pipeline.report.markdown import table
from pipeline.report.markers import renew

PAGE, RESULT = Path("docs/performance.md"), RESULTS / "speed-cpu.json"
THEIRS = {
    "generate": "transformers `generate`",
    "generate-static-compiled": "the same, static cache, compiled",
    "assisted": "assisted generation",
    "prompt-lookup": "prompt lookup",
}
"""What transformers does, by the name of a contender."""
SINGLE = ("decoding", "K", "tokens/s", "to `generate`", "to assisted", "to our plain", "to our strict")
FEW = 30
"""A cell with fewer timings than this says how many they are."""
Contenders = Mapping[str, Mapping[str, Any]]


def main() -> None:
    for name, content in parts_of(read_json(RESULT)).items():
        renew(PAGE, name, content)
    print(f"Written: {PAGE}")


def parts_of(result: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the page by the names of their markers.

    Raises:
        UserError: the result lacks the batch size 1.
    """
    sizes = {size: one["contenders"] for size, one in result["batches"].items()}
    if "1" not in sizes:
        raise UserError(f"{RESULT} has no single requests. Run `python -m benchmarks.speed` with batch size 1.")
    return {"speed": singles(sizes["1"]), "batches": by_size(sizes)}


def singles(found: Contenders) -> str:
    """One request at a time: transformers, then ours on each engine, slowest first; the head says how many prompts."""
    parts = []
    for engine in ENGINES:
        ours = sorted(
            (name for name in found if name.endswith(f"-{engine}") and name not in THEIRS),
            key=lambda name: float(found[name]["tokens_per_second"]),
        )
        shown = [*(name for name in THEIRS if name in found), *ours] if engine == ENGINES[0] else ours
        parts.append(table(SINGLE, [line(name, found[name], engine) for name in shown], numbers=True))
    every = next(iter(found.values()))
    occasions = f"{every['occasions']} occasion{'s' * (every['occasions'] > 1)}"
    return "\n\n".join([f"n = {every['n']} prompts, on {occasions}.", *parts])


def line(name: str, entry: Mapping[str, Any], engine: str) -> list[str]:
    """One contender; cells that compare it with itself or with another engine are empty."""
    own = () if name in THEIRS else (f"vs_plain-{engine}", f"vs_strict-{engine}")
    references = ("vs_generate", "vs_assisted", *own)
    cells = [*(interval(entry.get(key)) for key in references), *[""] * (len(SINGLE) - 3 - len(references))]
    return [title(name), block(entry), f"{entry['tokens_per_second']:.0f}", *cells]


def title(name: str) -> str:
    """A contender as the page calls it."""
    method, _, engine = name.rpartition("-")
    return THEIRS.get(name) or f"{method}, {engine}"


def block(entry: Mapping[str, Any]) -> str:
    """K; transformers' assisted generation with its own length and threshold has none."""
    return str(entry["block"] or "–")


def by_size(sizes: Mapping[str, Contenders]) -> str:
    """Tokens per second by batch size, and how many times faster a batch is than its rows one by one."""
    order = sorted(sizes, key=int)
    wide = order[1:]
    names = [name for name in [*THEIRS, *sorted(sizes[order[0]])] if all(name in sizes[size] for size in order)]
    head = ("decoding", *(f"batch {size}" for size in order), *(f"{size} to its rows" for size in wide))
    rows = []
    for name in dict.fromkeys(names):
        rates = [f"{sizes[size][name]['tokens_per_second']:.0f}" for size in order]
        rows.append([title(name), *rates, *(against_rows(sizes[size][name]) for size in wide)])
    return table(head, rows, numbers=True)


def against_rows(entry: Mapping[str, Any]) -> str:
    """A batch to its rows one by one, with the number of batches where they are few."""
    few = f" (n = {entry['n']})" if entry["n"] < FEW else ""
    return interval(entry.get("vs_batch_1")) + few


if __name__ == "__main__":
    run(main, kept=False)
