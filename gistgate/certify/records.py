"""The card of two runs, and the records from which anybody computes it again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gistgate
from gistgate.certify.joint import How, Joint, Row, figures, judged, points
from gistgate.certify.logs import Run
from gistgate.certify.paired import Record
from gistgate.core.files import (
    checksum,
    fingerprint,
    read_json,
    read_json_lines,
    write_json,
    write_json_lines,
    write_text,
)
from gistgate.core.utils import UserError, dataclass_from, refusing

KIND = "certificate-logs"
"""What a card calls itself, and the name of its files without a number."""
RECORDS = ".records.jsonl"
"""The end of the name of a file of records."""


@dataclass(frozen=True)
class LogsCertificate:
    """One verdict about the candidate's run against the baseline's."""

    kind: str
    baseline: dict[str, Any]
    """Place, source, model and fingerprint of the run that counts as right."""
    candidate: dict[str, Any]
    """The same of the run that was tested."""
    sentence: str
    verdict: str
    """PASS, FAIL or UNDECIDED."""
    joint: str
    """Whether each task keeps the budget, or their mean does."""
    budget: float
    confidence: float
    """Probability with which the verdict holds, over the draw of the documents."""
    error_shared: str
    """How the tasks share the error, in words."""
    loss: float
    bound: float
    """One-sided upper bound on the loss."""
    lower: float
    """One-sided lower bound on the loss."""
    needed: int | None
    tasks: tuple[dict[str, Any], ...]
    """A row for each task."""
    records: str
    """Fingerprint of the records beside the card."""
    made: str
    """Date in UTC."""
    version: str
    """Of GistGate."""

    @classmethod
    def of(
        cls, joint: Joint, records: Sequence[Record], baseline: Run, candidate: Run
    ) -> LogsCertificate:
        """What the test of two runs said."""
        return cls(
            kind=KIND,
            baseline=baseline.described,
            candidate=candidate.described,
            **verdict_of(joint),
            records=fingerprint_of(records),
            made=datetime.now(UTC).date().isoformat(),
            version=gistgate.__version__,
        )

    @property
    def rows(self) -> Iterator[Row]:
        """The rows of the tasks."""
        for row in self.tasks:
            yield dataclass_from(Row, row)

    @property
    def text(self) -> str:
        """The verdict and a line for each task."""
        lines = [self.sentence, *(f"  {row_sentence(row)}" for row in self.rows)]
        if not any(row.differing for row in self.rows):
            lines.append("No answer differs: make sure that these are two runs.")
        return "\n".join(lines)

    @property
    def card(self) -> str:
        """The verdict, a table of the tasks and all further entries as a page of Markdown."""
        lines = [
            f"# {self.sentence}",
            "",
            "| task | metric | n | baseline | candidate | lost | gained | differing | loss"
            " | at most | at least | confidence | verdict |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [table_row(row) for row in self.rows]
        lines += ["", "Losses and bounds are in points.", ""]
        entries = asdict(self)
        del entries["tasks"]
        lines += [f"- {name}: {in_cell(entry)}" for name, entry in entries.items()]
        return "\n".join([*lines, ""])


def verdict_of(joint: Joint) -> dict[str, Any]:
    """The entries of a card that its records decide, as JSON gives them back."""
    number = len(joint.rows)
    error = f"{100 * (1 - joint.confidence):.4g} %"
    shared = f"The one task has the whole error of {error}."
    if number > 1:
        share = 100 * (1 - joint.rows[0].confidence)
        shared = (
            f"The error of {error} is divided by the {number} tasks (Bonferroni), {share:.4g} % for"
            " each, so that all upper bounds hold together, and the bound of their mean with them;"
            " so do all lower bounds."
        )
    entries = {
        "sentence": joint.sentence,
        "verdict": joint.verdict,
        "joint": joint.how,
        "budget": joint.budget,
        "confidence": joint.confidence,
        "error_shared": shared,
        "loss": joint.loss,
        "bound": joint.bound,
        "lower": joint.lower,
        "needed": joint.needed,
        "tasks": [asdict(row) for row in joint.rows],
    }
    return dict(json.loads(json.dumps(entries)))


def row_sentence(row: Row) -> str:
    """What is said of a task, in one line."""
    return (
        f"{row.verdict} {row.task} ({row.metric}, {row.losses} lost and {row.gains} gained of"
        f" {row.n}): {figures(row)}"
    )


def table_row(row: Row) -> str:
    """A task in the table of a card."""
    cells = [
        row.task,
        row.metric,
        f"{row.n}",
        f"{row.baseline:.4f}",
        f"{row.candidate:.4f}",
        f"{row.losses}",
        f"{row.gains}",
        f"{row.differing}",
        points(row.loss),
        points(row.bound, up=True),
        points(row.lower, up=False),
        f"{100 * row.confidence:.4g} %",
        row.verdict,
    ]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def in_cell(value: Any) -> str:
    """A value as JSON that no table takes for the end of a cell."""
    return json.dumps(value, ensure_ascii=False).replace("|", "&#124;")


def fingerprint_of(records: Sequence[Record]) -> str:
    """A hash of records, whatever the format of their file."""
    return fingerprint([asdict(record) for record in records])


def write_card(certificate: LogsCertificate, records: Sequence[Record], folder: Path) -> Path:
    """Write a card as JSON and Markdown with its records beside it, under a name that is free."""
    path = free_name(folder)
    write_json_lines(path.with_suffix(RECORDS), [asdict(record) for record in records])
    write_text(path.with_suffix(".md"), certificate.card)
    entries = asdict(certificate)
    write_json(path, {**entries, "checksum": checksum(entries)})
    return path


def free_name(folder: Path) -> Path:
    """The first name of a card, without or with a number, that no file has."""
    path = folder / f"{KIND}.json"
    number = 1
    while any(path.with_suffix(end).exists() for end in (".json", ".md", RECORDS)):
        number += 1
        path = folder / f"{KIND}-{number}.json"
    return path


def recomputed(path: Path) -> LogsCertificate:
    """Compute a card again from the records beside it; UserError where they do not fit."""
    entries = read_json(path)
    records = read_records(path.with_suffix(RECORDS))
    with refusing(f"{path} is no card of two runs", "Name one that `gistgate certify` wrote."):
        seal = entries.pop("checksum")
        certificate = dataclass_from(LogsCertificate, entries)
        metrics = {row.task: row.metric for row in certificate.rows}
        how: How = "mean" if certificate.joint == "mean" else "each"
        fits = checksum(entries) == seal and fingerprint_of(records) == certificate.records
        joint = judged(records, metrics, certificate.budget, certificate.confidence, how)
    computed = verdict_of(joint)
    wrong = [name for name, entry in computed.items() if entries[name] != entry]
    if wrong or not fits:
        raise UserError(
            f"The records do not fit the card {path}: {', '.join(wrong) or 'an entry'} differs."
            " Restore both, or certify again."
        )
    return certificate


def read_records(path: Path) -> list[Record]:
    """Read a file of records."""
    records = []
    for row in read_json_lines(path):
        with refusing(f"{path} is no file of records", "Restore it, or certify again."):
            records.append(dataclass_from(Record, row))
    return records


def write_junit(path: Path, certificate: LogsCertificate) -> None:
    """Write the verdict as a report of tests: one case for each task and one for the verdict. If
    the mean counts, no task alone fails.
    """
    suite = ElementTree.Element("testsuite", name="gistgate certify")
    failures = 0
    for row in certificate.rows:
        verdict = "PASS" if certificate.joint == "mean" else row.verdict
        failures += add_case(suite, row.task, verdict, row_sentence(row))
    failures += add_case(suite, "verdict", certificate.verdict, certificate.sentence)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    write_text(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True))


def add_case(suite: ElementTree.Element, name: str, verdict: str, sentence: str) -> bool:
    """Add a case to a report of tests; returns whether it failed, as an open verdict does."""
    case = ElementTree.SubElement(suite, "testcase", classname="gistgate.certify", name=name)
    ElementTree.SubElement(case, "system-out").text = sentence
    if verdict == "PASS":
        return False
    ElementTree.SubElement(case, "failure", type=verdict, message=sentence)
    return True
