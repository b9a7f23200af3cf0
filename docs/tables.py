"""Tables of the pages, made of result files: a table stands behind a line `<!-- table NAME -->`."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TABLE = re.compile(r"(?<=<!-- table )(\w+)( -->\n)((?:\|.*\n)*)")
UNTRAINED = ("prob", "prob-ratio", "fly")
METHODS = {
    "exact": "strict decoding",
    "prob": "rule `prob`",
    "prob-ratio": "rule `prob-ratio`",
    "fly": "FLy",
    "sense": "SENSE (drafts from its datastore)",
    "segments": "SemanticSpec",
    "autojudge": "gate (AutoJudge)",
}
"""Methods of the embedded run, those without training first."""
CARDS = {
    "qwen2.5-coder-0.5b-q8_0-additions": "llama.cpp, 0.5B: weights of 8 bits (Q8_0) for 16",
    "qwen2.5-coder-0.5b-q4_0-additions": "llama.cpp, 0.5B: weights of 4 bits (Q4_0) for 16",
    "qwen2.5-coder-0.5b-for-1.5b-sums": "llama.cpp: the 0.5B model for the 1.5B model",
    "qwen2.5-coder-0.5b-int8-additions": "vLLM, 0.5B: weights and activations of 8 bits for 16",
    "qwen2.5-coder-0.5b-prefix-caching-orders": "vLLM, 0.5B: prefix caching and n-gram drafts",
    "qwen2.5-coder-1.5b-w8a8-fly-6-orders": "vLLM, 1.5B in 8 bits: FLy with window 6, orders",
    "qwen2.5-coder-1.5b-w8a8-fly-6-bills": "vLLM, 1.5B in 8 bits: FLy with window 6, bills",
    "qwen2.5-coder-1.5b-w8a8-fly-2-bills": "vLLM, 1.5B in 8 bits: FLy with window 2, bills",
    "qwen2.5-coder-1.5b-fly-6-gsm8k": "vLLM, 1.5B: FLy with window 6, GSM8K",
    "qwen2.5-coder-1.5b-fly-2-gsm8k": "vLLM, 1.5B: FLy with window 2, GSM8K",
}
"""Cards that README shows, with what was changed."""


def renewed_tables(text: str) -> str:
    """The page with its tables made again."""

    def with_rows(table: re.Match[str]) -> str:
        return f"{table[1]}{table[2]}{TABLES[table[1]]()}"

    return TABLE.sub(with_rows, text)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is a text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def interval(ratio: dict[str, Any]) -> str:
    """A value with the ends of its interval."""
    return f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def points(share: float) -> str:
    """A share in points."""
    return f"{100 * share + 0.0:.1f}".replace("-0.0", "0.0")


def summary() -> dict[str, Any]:
    """What the embedded run found."""
    values: dict[str, Any] = json.loads((DOCS / "results/summary.json").read_text())
    return values


def cards() -> str:
    """What others' faster decoders cost, with their speed."""
    rows = []
    for name, change in CARDS.items():
        card = json.loads((DOCS / f"results/cards/{name}.json").read_text())
        answer = card["speed"]["answer"]
        low, high = answer["interval"]
        rows.append(
            [
                f"[{change}](docs/results/cards/{name}.md)",
                f"{answer['ratio']:.2f} [{low:.2f}, {high:.2f}]",
                str(card["tasks"][0]["n"]),
                f"{100 * card['budget']:.0f}",
                f"{100 * card['loss']:.1f} [{100 * card['lower']:.1f}, {100 * card['bound']:.1f}]",
                card["verdict"],
            ]
        )
    head = ["what was changed", "times as fast", "prompts", "budget", "loss", "verdict"]
    return markdown(head, rows)


def is_better(name: str, methods: dict[str, Any]) -> str:
    """Whether a method is shown to be faster than each certified rule of UNTRAINED."""
    if name in ("exact", *UNTRAINED):
        return "–"
    mine = methods[name]["speed"]["vs_strict"]
    others = [methods[rule]["speed"] for rule in UNTRAINED if rule in methods]
    rivals = [speed["vs_strict"] for speed in others if speed]
    if all(mine["low"] > rival["high"] for rival in rivals):
        return "yes"
    return "no" if any(mine["high"] < rival["low"] for rival in rivals) else "not shown"


def decoders() -> str:
    """The methods of the embedded run: speed, budget and loss of the same decoder."""
    methods = summary()["methods"]
    rows = []
    for name, title in METHODS.items():
        method = methods.get(name)
        if method is None or not method["speed"]:
            continue
        loss = {key: -share for key, share in method["accuracy_difference"].items()}
        lost = f"{points(loss['mean'])} [{points(loss['high'])}, {points(loss['low'])}]"
        rows.append(
            [
                title,
                interval(method["speed"]["vs_plain"]),
                interval(method["speed"]["vs_strict"]),
                "–" if name == "exact" else f"{100 * method['budget']:.0f}",
                "–" if name == "exact" else lost,
                is_better(name, methods),
            ]
        )
    head = ["decoding", "to plain", "to strict", "budget kept", "loss on 600 other prompts"]
    return markdown([*head, "faster than the three rules without training?"], rows)


def embedded() -> str:
    """All figures of the methods of the embedded run."""
    rows = []
    methods = summary()["methods"]
    for name, title in METHODS.items():
        method = methods[name]
        proof = method["certificates"][str(summary()["headline_budget"])]
        difference = method["accuracy_difference"]
        low, high = points(difference["low"]), points(difference["high"])
        speeds = method["speed"]
        pace = [interval(speeds[key]) if speeds else "–" for key in SPEEDS]
        is_strict = method["knob"] is None
        rows.append(
            [
                title,
                "–" if is_strict else f"{method['knob']:g}",
                "–" if is_strict else points(proof["bound"]),
                f"{proof['losses']}, {proof['gains']}",
                f"{points(difference['mean'])} [{low}, {high}]",
                f"{method['mean_accepted_length']:.2f}",
                *pace,
                f"{proof['mean_tokens']:.1f}",
            ]
        )
    head = ["method", "setting", "bound", "lost, gained", "difference", "tau"]
    return markdown([*head, "to plain", "to strict", "to assisted", "tokens"], rows)


SPEEDS = ("vs_plain", "vs_strict", "vs_assisted")
TABLES: dict[str, Callable[[], str]] = {"cards": cards, "decoders": decoders, "embedded": embedded}
