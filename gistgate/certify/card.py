"""The card: what a comparison of two servers, or of the logs of two runs, says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import gistgate
from gistgate.certify.claims import CLAIMS
from gistgate.certify.joint import Design, Joint, Row, figures, points
from gistgate.certify.paired import Record
from gistgate.core.files import fingerprint
from gistgate.core.utils import dataclass_from

Kind = Literal["served-certificate", "certificate-logs", "setting"]
"""What a card calls itself, and the name of its files without a number."""


@dataclass(frozen=True)
class Card:
    """One verdict about the candidate against the baseline."""

    kind: Kind
    baseline: dict[str, Any]
    """The side that counts as right: a server with its requests, what it reports and means over its
    answers, or a run with its place, source, model and fingerprint."""
    candidate: dict[str, Any]
    """The same of the side that was tested."""
    sentence: str
    verdict: str
    """PASS, FAIL or UNDECIDED."""
    joint: str
    """Whether each task keeps the budget, or their mean does."""
    budget: float
    """Largest mean loss in the unit of the score, share of changed answers, or growth of the mean
    length."""
    confidence: float
    """Probability with which the verdict holds, over the draw of the prompts."""
    error_shared: str
    """How tasks and tests share the error, in words."""
    loss: float
    bound: float | None
    """One-sided upper bound on the loss."""
    lower: float
    """One-sided lower bound on the loss."""
    needed: int | None
    """Prompts that would decide an open verdict, about."""
    tasks: tuple[dict[str, Any], ...]
    """A row for each task."""
    design: dict[str, Any]
    """What was fixed of the test beforehand."""
    records: str
    """Fingerprint of the records beside the card."""
    looks: int
    """Looks at any of these prompts that the ledger knows, this one included."""
    made: str
    """Date in UTC."""
    version: str
    """Of GistGate."""
    scope: dict[str, Any] = field(default_factory=dict)
    """Task, prompts, prompting and sampling of servers."""
    refused: tuple[dict[str, Any], ...] = ()
    """Prompts that a server refused and that were left out, by their places, each with the
    cause."""
    speed: dict[str, Any] = field(default_factory=dict)
    """What was timed; empty where nothing was."""
    control: dict[str, Any] = field(default_factory=dict)
    """What a second run of the baseline said; empty where there was none."""

    @classmethod
    def of(
        cls, kind: Kind, joint: Joint, design: Design, records: Sequence[Record], **entries: Any
    ) -> Card:
        """What a test said; `entries` are the sides and what else is known."""
        return cls(
            kind=kind,
            **verdict_of(joint),
            design=asdict(design),
            records=fingerprint_of(records),
            made=datetime.now(UTC).date().isoformat(),
            version=gistgate.__version__,
            **entries,
        )

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of the tasks."""
        for row in self.tasks:
            yield dataclass_from(Row, row)

    @property
    def promise(self) -> str:
        """What the verdict says of the candidate, for readers who know nothing of tests."""
        promise = CLAIMS[self.design["claim"]].promise.format(100 * self.budget)
        sampling = self.scope.get("sampling", {})
        sampled = ", and over samples of their answers" if sampling.get("temperature") else ""
        claim = (
            f"{name_of(self.candidate)} {promise} {name_of(self.baseline)}, on average over prompts"
            f" like these{sampled}"
        )
        sure = f"{100 * self.confidence:.4g} % confidence"
        if self.verdict == "PASS":
            return f"With {sure}, {claim}."
        if self.verdict == "FAIL":
            return f"With {sure}, it is not true that {claim}."
        return f"These prompts do not show, with {sure}, whether {claim}."

    @property
    def warnings(self) -> list[str]:
        """What a reader should know before anything else."""
        warnings = []
        if not any(row.differing for row in self.rows):
            warnings.append("No answer differs: make sure that baseline and candidate are two.")
        if self.refused:
            warnings.append(
                f"Prompts that a server refused, which are left out: {len(self.refused)}."
            )
        if self.looks > 1:
            warnings.append(
                f"The ledger knows {self.looks} looks at these prompts, this one included."
            )
        return warnings

    @property
    def notes(self) -> list[str]:
        """What a reader should know beside the figures."""
        measured = [entries["sentence"] for entries in (self.speed, self.control) if entries]
        return [*self.warnings, *measured]

    @property
    def unit(self) -> str:
        """Of losses and bounds."""
        return CLAIMS[self.design["claim"]].unit

    @property
    def headline(self) -> str:
        """The verdict and, where both servers were timed, how fast the candidate is."""
        return "; ".join(filter(None, [self.sentence, self.speed.get("verdict")]))

    @property
    def text(self) -> str:
        """The verdict, a line for each task and, of servers, for each side, and the notes."""
        lines = [self.headline, *(f"  {row_sentence(row)}" for row in self.rows)]
        for side, means in (("baseline", self.baseline), ("candidate", self.candidate)):
            if "answers" in means:
                lines.append(f"  {side:10} {in_words(means['answers'])}")
        return "\n".join([*lines, *self.notes])

    @property
    def page(self) -> str:
        """The verdict, a table of the tasks and all further entries as a page of Markdown."""
        heading = " | ".join(COLUMNS)
        rules = "|".join("---" if name in LEFT else "---:" for name in COLUMNS)
        lines = [f"# {self.headline}", ""]
        for paragraph in (self.promise, *self.notes):
            lines += [paragraph, ""]
        lines += [f"| {heading} |", f"|{rules}|"]
        for row in self.rows:
            cells = (cell.replace("|", "&#124;") for cell in table_row(row).values())
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"Losses and bounds are in {self.unit}.", ""]
        entries = asdict(self)
        del entries["tasks"]
        lines += [f"- {name}: {in_cell(entry)}" for name, entry in entries.items()]
        return "\n".join([*lines, ""])


LEFT = ("task", "metric", "verdict")
COLUMNS = (
    *("task", "metric", "n", "baseline", "candidate", "worse", "better", "differing", "loss"),
    *("at most", "at least", "confidence", "tested at", "verdict"),
)
"""Of the table of tasks; those of `LEFT` are texts."""


def table_row(row: Row) -> dict[str, str]:
    """A task in the table of a card, by the names of the columns."""
    cells = (
        row.task,
        row.metric,
        f"{row.n}",
        f"{row.baseline:.4f}",
        f"{row.candidate:.4f}",
        f"{row.losses}",
        f"{row.gains}",
        f"{row.differing}",
        points(row.loss),
        "–" if row.bound is None else points(row.bound, up=True),
        points(row.lower, up=False),
        f"{100 * row.confidence:.4g} %",
        f"{100 * row.tested_at:.4g} %",
        row.verdict,
    )
    return dict(zip(COLUMNS, cells, strict=True))


def verdict_of(joint: Joint) -> dict[str, Any]:
    """The entries of a card that its records decide, as JSON gives them back."""
    entries = {
        "sentence": joint.sentence,
        "verdict": joint.verdict,
        "joint": joint.how,
        "budget": joint.budget,
        "confidence": joint.confidence,
        "error_shared": error_shared(joint),
        "loss": joint.loss,
        "bound": joint.bound,
        "lower": joint.lower,
        "needed": joint.needed,
        "tasks": [asdict(row) for row in joint.rows],
    }
    return dict(json.loads(json.dumps(entries)))


def error_shared(joint: Joint) -> str:
    """How tasks, and the tests of one task, share the error."""
    number = len(joint.rows)
    row = joint.rows[0]
    error = f"{100 * (1 - joint.confidence):.4g} %"
    shared = f"The one task has the whole error of {error}."
    if number > 1:
        share = 100 * (1 - row.confidence)
        shared = (
            f"The error of {error} is divided by the {number} tasks (Bonferroni), {share:.4g} % for"
            " each, so that all upper bounds hold together, and the bound of their mean with them;"
            " so do all lower bounds."
        )
    if row.tested_at > row.confidence:
        shared += (
            " The test after every prompt and the one at the end have half of it each, so that the"
            f" bound was computed at {100 * row.tested_at:.4g} %."
        )
    return shared


def row_sentence(row: Row) -> str:
    """What is said of a task, in one line."""
    _, worse, better = CLAIMS[row.claim].words
    return (
        f"{row.verdict} {row.task} ({row.metric}, {row.losses} {worse} and {row.gains} {better} of"
        f" {row.n}): {figures(row)}"
    )


def name_of(side: Mapping[str, Any]) -> str:
    """A server or a run in words."""
    place = side.get("url") or side.get("path") or ""
    model = side.get("model")
    return f"{model} at {place}" if model else str(place)


def in_words(entries: Mapping[str, Any]) -> str:
    """Entries in a line, by their names, numbers in four digits."""
    words = []
    for name, entry in sorted(entries.items()):
        if entry is not None:
            words.append(f"{name} {entry:.4g}" if isinstance(entry, float) else f"{name} {entry}")
    return ", ".join(words)


def in_cell(value: Any) -> str:
    """A value as JSON that no table takes for the end of a cell."""
    return json.dumps(value, ensure_ascii=False).replace("|", "&#124;")


def fingerprint_of(records: Sequence[Record]) -> str:
    """A hash of records, whatever the format of their file."""
    return fingerprint([record.entries for record in records])
