"""The files of a card, and the records from which anybody computes it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from gistgate.certify.card import Card, fingerprint_of, row_sentence, verdict_of
from gistgate.certify.joint import Design, How, judged
from gistgate.certify.paired import Record
from gistgate.core.files import (
    checksum,
    read_json,
    read_json_lines,
    write_json,
    write_json_lines,
    write_text,
)
from gistgate.core.utils import UserError, dataclass_from, refusing

RECORDS = ".records.jsonl"
"""The end of the name of a file of records."""
ENDS = (".json", ".md", ".html", RECORDS)


def write_card(card: Card, records: Sequence[Record], folder: Path) -> Path:
    """Write a card as JSON, Markdown and HTML with its records beside it, under a name that is
    free.
    """
    path = free_name(folder, card.kind)
    write_files(card, records, path)
    return path


def write_files(card: Card, records: Sequence[Record], path: Path) -> None:
    """Write a card to `path`, and beside it as Markdown and HTML and its records; all or none."""
    from gistgate.certify.html import html_of

    entries = asdict(card)
    try:
        write_json_lines(path.with_suffix(RECORDS), [record.entries for record in records])
        write_text(path.with_suffix(".md"), card.page)
        write_text(path.with_suffix(".html"), html_of(card, records))
        write_json(path, {**entries, "checksum": checksum(entries)})
    except UserError:
        for end in ENDS:
            path.with_suffix(end).unlink(missing_ok=True)
        raise


def free_name(folder: Path, kind: str) -> Path:
    """The first name of a card, without or with a number, that no file has."""
    path = folder / f"{kind}.json"
    number = 1
    while any(path.with_suffix(end).exists() for end in ENDS):
        number += 1
        path = folder / f"{kind}-{number}.json"
    return path


def recomputed(path: Path) -> Card:
    """Compute a card again from the records beside it; UserError where they do not fit."""
    entries = read_json(path)
    records = read_records(path.with_suffix(RECORDS))
    with refusing(f"{path} is no card", "Name one that `gistgate certify` wrote."):
        seal = entries.pop("checksum")
        card = dataclass_from(Card, entries)
        metrics = {row.task: row.metric for row in card.rows}
        how: How = "mean" if card.joint == "mean" else "each"
        design = dataclass_from(Design, card.design)
        fits = checksum(entries) == seal and fingerprint_of(records) == card.records
        joint = judged(records, metrics, card.budget, card.confidence, how, design)
    computed = verdict_of(joint)
    wrong = [name for name, entry in computed.items() if entries[name] != entry]
    if wrong or not fits:
        raise UserError(
            f"The records do not fit the card {path}: {', '.join(wrong) or 'an entry'} differs."
            " Restore both, or certify again."
        )
    return card


def read_records(path: Path) -> list[Record]:
    """Read a file of records."""
    records = []
    for row in read_json_lines(path):
        with refusing(f"{path} is no file of records", "Restore it, or certify again."):
            records.append(dataclass_from(Record, row))
    return records


def write_junit(path: Path, card: Card) -> None:
    """Write the verdict as a report of tests: one case for each task and one for the verdict. If
    the mean counts, no task alone fails.
    """
    suite = ElementTree.Element("testsuite", name="gistgate certify")
    failures = 0
    for row in card.rows:
        verdict = "PASS" if card.joint == "mean" else row.verdict
        failures += add_case(suite, row.task, verdict, row_sentence(row))
    failures += add_case(suite, "verdict", card.verdict, card.headline)
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
