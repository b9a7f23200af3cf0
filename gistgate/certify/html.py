"""The card as one HTML file for readers who decide: it has no scripts and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gistgate.certify.card import COLUMNS, Card, table_row
from gistgate.certify.claims import CLAIMS
from gistgate.certify.joint import Row, figures, limit_of, points
from gistgate.certify.paired import Record
from gistgate.core.utils import printable

TEMPLATES = Path(__file__).parent / "templates"
LEFT = 2.0  # ends of the axis in the picture, in hundredths of its width
RIGHT = 98.0
MOST_BARS = 30
SPEEDS = {
    "answer": "seconds for an answer",
    "token": "seconds for a token",
    "first token": "seconds to the first token",
    "forwards": "target forwards for an answer",
}
"""What was timed, as it is said in the table."""
WORST = 10
"""Examples that the page shows."""


def html_of(card: Card, records: Sequence[Record]) -> str:
    """The page of a card: verdict, picture, what was compared, and the worst examples if texts were
    kept.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    style = (TEMPLATES / "card.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    sides = {name: flat(getattr(card, name)) for name in ("baseline", "candidate")}
    return environment.get_template("card.html.j2").render(
        card=card,
        style=Markup(style),
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'",
        tiles=list(tiles(card)),
        picture=picture(card),
        columns=COLUMNS,
        rows=[table_row(row) for row in card.rows],
        sides=sides,
        facts=list(dict.fromkeys([*sides["baseline"], *sides["candidate"]])),
        speeds=speeds(card.speed),
        scope=flat(card.scope),
        examples=worst(card, records),
        has_scores=CLAIMS[card.design["claim"]].is_scored,
        has_texts=any(record.texts for record in records),
    )


def tiles(card: Card) -> Iterator[dict[str, str]]:
    """The figures that decide, each with its name and with what belongs to it."""
    claim = CLAIMS[card.design["claim"]]
    loss, worse, better = claim.words
    rows = list(card.rows)
    n = sum(row.n for row in rows)
    losses = sum(row.losses for row in rows)
    gains = sum(row.gains for row in rows)
    yield tile("budget", f"{points(card.budget)} {card.unit}", "the most that is allowed")
    yield tile(loss, f"{points(card.loss)} {card.unit}", limit_of(card))
    yield tile("prompts", f"{n:,}", f"{losses:,} {worse}, {gains:,} {better}")
    if "answer" in card.speed:
        times = card.speed["answer"]
        low, high = times["interval"]
        interval = f"[{low:.2f}, {high:.2f}] at {100 * card.speed['confidence']:.4g} %"
        yield tile("speed", f"{times['ratio']:.2f} times as fast", interval)


def tile(name: str, figure: str, hint: str) -> dict[str, str]:
    """A figure as the page shows it."""
    return {"name": name, "figure": figure, "hint": hint}


def speeds(speed: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each thing that was timed."""
    rows = []
    for name, words in SPEEDS.items():
        if name in speed:
            times = speed[name]
            low, high = times["interval"]
            row = {side: f"{times[side]:.3g}" for side in ("baseline", "candidate")}
            rows.append(
                {"name": words, "ratio": f"{times['ratio']:.2f} [{low:.2f}, {high:.2f}]", **row}
            )
    return rows


def picture(card: Card) -> dict[str, Any]:
    """Where the budget, and loss and bounds of each verdict, stand on one axis."""
    joint = [card] if len(card.tasks) > 1 else []
    bars: list[Card | Row] = [*joint, *islice(card.rows, MOST_BARS)]
    ends = [card.budget, 0.0]
    for bar in bars:
        reach = (bar.loss if bar.bound is None else bar.bound) - bar.loss
        ends += [bar.loss + reach, max(bar.lower, bar.loss - 2 * reach)]
    low = min(ends)
    high = max(ends) + 0.1 * (max(ends) - low)

    def place(value: float | None) -> float:
        """On the axis; what lies beyond its ends, or is not bounded, is put there."""
        share = 1.0 if value is None else (value - low) / (high - low)
        return round(LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share)), 1)

    shown = []
    for bar in bars:
        begin = place(bar.lower)
        shown.append(
            {
                "name": bar.task if isinstance(bar, Row) else f"{card.joint} of all tasks",
                "verdict": bar.verdict,
                "label": bar.sentence if isinstance(bar, Card) else figures(bar),
                "begin": begin,
                "width": round(place(bar.bound) - begin, 1),
                "loss": place(bar.loss),
            }
        )
    budget = place(card.budget)
    return {
        "bars": shown,
        "zero": place(0.0),
        "budget": budget,
        "label": f"budget {points(card.budget)} {card.unit}",
        "side": "start" if budget < (LEFT + RIGHT) / 2 else "end",  # where the label has room
    }


def worst(card: Card, records: Sequence[Record]) -> list[dict[str, Any]]:
    """The examples with texts that speak most against the candidate, and then those that only
    differ.
    """
    sign = -1 if card.design["claim"] == "length" else 1
    candidates = [record for record in records if record.texts and record.differs]
    candidates.sort(key=lambda record: sign * (record.candidate - record.baseline))
    examples = []
    for record in candidates[:WORST]:
        prompt, *answers = map(printable, record.texts)
        samples = len(answers) // 2
        examples.append(
            {
                "place": record.id,
                "prompt": prompt,
                "baseline": {"score": record.baseline, "answers": answers[:samples]},
                "candidate": {"score": record.candidate, "answers": answers[samples:]},
            }
        )
    return examples


def flat(entries: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested entries as one level, with the names of all levels, numbers in four digits."""
    rows: dict[str, str] = {}
    for key, entry in entries.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping):
            rows |= flat(entry, f"{name}: ")
        elif isinstance(entry, float):
            rows[name] = f"{entry:.4g}"
        elif isinstance(entry, Sequence) and not isinstance(entry, str):
            rows[name] = printable(", ".join(map(str, entry)))
        elif entry is not None:
            text = entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)
            rows[name] = printable(text)
    return rows
