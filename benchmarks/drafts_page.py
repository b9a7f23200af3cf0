"""Write what the benchmarks of drafts found into docs/drafts.md, between its markers.

    python -m benchmarks.drafts_page

Reads benchmarks/results; files that do not exist leave their table out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import RESULTS
from benchmarks.drafting_figures import ASSISTED, GENERATE, PLAIN
from benchmarks.editing import DRAFTERS
from benchmarks.ladder import STEPS as ALL_STEPS
from benchmarks.ladder import STRICT
from gistgate.files import read_json
from pipeline.common.entry import run
from pipeline.report.markdown import table
from pipeline.report.markers import renew
from pipeline.report.publish import PART

PAGE = Path("docs/drafts.md")
NOTHING = "Nothing of this is published yet."
STEPS = (
    "method: step",
    "K",
    "n",
    "tokens/s",
    "vs plain",
    "vs `generate`",
    "vs assisted",
    "vs the step before",
    "tau",
    "limit",
    "rest, %",
)
SIZES = ("tokens", "of the training answers, %", "tau", "c", "limit")
EDITING = ("drafter", "K", "n", "tokens/s", "vs plain", "vs model", "tau")
ROUNDS = (
    "engine, batch, method",
    "K",
    "n",
    "tau",
    "draft, %",
    "verify, %",
    "accept, %",
    "rest, %",
    "outside, %",
    "vs eager",
)
OVERLAP = ("drafting and verifying", "overlapped", "drafting alone", "rounds kept, %", "most", "strict")


def main() -> None:
    renew(PAGE, PART, content_of(RESULTS))
    print(f"Written: {PAGE}")


def content_of(results: Path) -> str:
    """The tables of every result, or a sentence where there is none."""
    shown = [show(read_json(path)) for pattern, show in SHOWN.items() for path in sorted(results.glob(pattern))]
    return "\n\n".join(shown) or NOTHING


def drafting(found: Mapping[str, Any]) -> str:
    """Every method on every step of `benchmarks.drafting`."""
    contenders = found["contenders"]
    rows = [line(name, contenders[name]) for name in sorted(contenders, key=place)]
    about = (
        f"Pair `{found['pair']}`, batch {found['batch']}, up to {found['max_new_tokens']} new tokens, "
        f"{threads(found)}; quantised to `{found['kind']}`."
    )
    tried = [] if found["subset"] is None else found["subset"]["tried"]
    shown = table(*filled(STEPS, rows), numbers=True)
    return "\n\n".join([about, shown, *vocabulary(tried), *reasons(found["left_out"])])


def filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows without the columns in which no row has anything."""
    kept = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return [header[place] for place in kept], [[row[place] for place in kept] for row in rows]


def vocabulary(tried: Sequence[Mapping[str, Any]]) -> list[str]:
    """What every size of the draft's vocabulary promised on development prompts, if several were tried."""
    if len(tried) < 2:
        return []
    rows = [
        [
            f"{one['size']:,}",
            decimal(100 * one["coverage"], 1),
            *(decimal(one[key]) for key in ("tau", "draft", "strict")),
        ]
        for one in tried
    ]
    about = "Parts of the vocabulary on development prompts, with strict decoding; the fastest one is taken:"
    return [about, table(SIZES, rows, numbers=True)]


def place(name: str) -> tuple[int, str, int]:
    """Where a contender stands: baselines, strict decoding, then method by method, each in the order of its steps."""
    method, _, step = name.partition(": ")
    order = (PLAIN, GENERATE, ASSISTED, STRICT)
    first = order.index(method) if method in order else len(order)
    return first, method, ALL_STEPS.index(step) if step else 0


def line(name: str, entry: Mapping[str, Any]) -> list[str]:
    """One contender; cells that say nothing about it are empty."""
    ratios = [interval(entry.get(key)) for key in ("vs_plain", "vs_generate", "vs_assisted", "vs_before")]
    block, rest = str(entry["block"] or "–"), entry.get("parts", {}).get("rest")
    more = [decimal(entry.get("tau")), decimal(entry.get("limit")), decimal(rest and 100 * rest, 1)]
    return [name, block, str(entry["n"]), f"{entry['tokens_per_second']:.1f}", *ratios, *more]


def editing(found: Mapping[str, Any]) -> str:
    """The drafters of `benchmarks.editing`."""
    rows = []
    for name in (one for one in (PLAIN, *DRAFTERS) if one in found["contenders"]):
        entry = found["contenders"][name]
        cells = [name, str(entry["block"] or "–"), str(entry["n"]), f"{entry['tokens_per_second']:.1f}"]
        rows.append([*cells, *(interval(entry.get(key)) for key in ("vs_plain", "vs_model")), decimal(entry["tau"])])
    about = (
        f"Repeating a Python file of {found['functions']} functions with one change: pair `{found['pair']}`, strict, "
        f"up to {found['max_new_tokens']} new tokens, each drafter at the fastest K of "
        f"{', '.join(map(str, found['tried']))} on other such requests, {threads(found)}."
    )
    return "\n\n".join([about, table(EDITING, rows, numbers=True), *reasons(found.get("left_out", {}))])


def rounds(found: Mapping[str, Any]) -> str:
    """The shares of `benchmarks.rounds`."""
    rows = []
    for engine, sizes in found["engines"].items():
        for size, methods in sorted(sizes.items(), key=lambda one: int(one[0])):
            for name, entry in methods.items():
                shares = [f"{100 * one['mean']:.1f}" for one in (entry["shares"][part] for part in SHARES)]
                about = [f"{engine}, {size}, {name}", str(entry["block"]), str(entry["n"]), decimal(entry["tau"])]
                rows.append([*about, *shares, interval(entry.get("vs_eager"))])
    about = (
        f"Shares of the rounds' seconds: pair `{found['pair']}`, up to {found['max_new_tokens']} new tokens, "
        f"{threads(found)}; `outside` is the share of the requests' time that lies in no round; n counts batches."
    )
    return f"{about}\n\n{table(ROUNDS, rows, numbers=True)}"


def overlap(found: Mapping[str, Any]) -> str:
    """What `benchmarks.overlap` says of one round."""
    seconds = [f"{1000 * found['seconds'][name]:.1f} ms" for name in ("serial", "both", "draft")]
    cells = [*seconds, f"{100 * found['share_kept']:.1f}", interval(found["most"]), interval(found["strict"])]
    about = (
        f"Drafting the next block during verification: pair `{found['pair']}`, K = {found['block']}, {found['n']} "
        f"calls, {threads(found)}. The next block is drafted before the target's own token is known. `most` is the "
        f"speed of rounds in which that token is always guessed and the whole block kept, `strict` that with the "
        f"share of rounds that strict decoding of {found['prompts']} development prompts keeps."
    )
    return f"{about}\n\n{table(OVERLAP, [cells])}"


def reasons(left_out: Mapping[str, str]) -> Sequence[str]:
    """A sentence about what was left out, where something was."""
    return [" ".join(["Left out:", *(f"{name} ({why.rstrip('.')})." for name, why in left_out.items())])] * bool(
        left_out
    )


def threads(found: Mapping[str, Any]) -> str:
    """The machine of a result, as far as seconds depend on it."""
    num = found["machine"]["threads"]
    return f"{num} thread{'s' * (num > 1)} of {found['machine']['device']}"


def interval(ratio: Mapping[str, float] | None) -> str:
    """A ratio with its interval."""
    return "" if ratio is None else f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


SHARES = ("draft", "verify", "accept", "rest", "outside")
SHOWN = {
    "drafting-*.json": drafting,
    "editing-*.json": editing,
    "rounds-*.json": rounds,
    "overlap-*.json": overlap,
}
"""By the name of a result what shows it."""


if __name__ == "__main__":
    run(main, kept=False)
