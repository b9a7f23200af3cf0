"""The records of tested settings: every calibration prompt with both scores, lengths and target
forwards, beside a card from which `gistgate certify --recompute` computes the bound again.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gistgate.certificates.calibration import Finding
from gistgate.certificates.fixed_sequence import Tested
from gistgate.certificates.ledger import hash_of
from gistgate.certify.card import Card
from gistgate.certify.claims import Claim
from gistgate.certify.joint import Design, joined, tested
from gistgate.certify.paired import Record
from gistgate.certify.records import write_files
from gistgate.core.files import write_atomic
from gistgate.core.request import Statistics
from gistgate.tasks.prompts import Prompt
from pipeline.outcomes import Setup

CARD = "setting-{}.json"
"""The name of a card, by the place of its setting in the sequence, from 1 on."""


def write_records(folder: Path, setup: Setup, finding: Finding, scope: dict[str, Any]) -> None:
    """Write a card with its records for every tested setting of a method."""

    def write(part: Path) -> None:
        part.mkdir(parents=True)
        for number, setting in enumerate(finding.verdicts.tested):
            records = records_of(setup, setting)
            card = card_of(setup, finding, number, records, scope)
            write_files(card, records, part / CARD.format(number + 1))

    write_atomic(folder, write)


def records_of(setup: Setup, setting: Tested) -> list[Record]:
    """The prompts that a setting was tested on, in their order."""
    decoded = setting.decoded
    # A setting that was left early has the first prompts alone.
    prompts = setup.prompts["calibration"][: len(decoded.differences)]
    records = []
    for place, (prompt, row) in enumerate(zip(prompts, setup.strict_rows(prompts))):
        counted = decoded.statistics[place]
        baseline = float(row["score"])
        record = Record(
            task=setup.task.name,
            id=prompt["id"],
            prompt=hash_of(prompt["ids"]),
            baseline=baseline,
            candidate=baseline - float(decoded.differences[place]),
            differs=decoded.differs[place],
            tokens=(len(row["ids"]), counted.tokens),
            finishes=(ended(prompt, len(row["ids"])), ended(prompt, counted.tokens)),
            forwards=(row["statistics"]["forwards"], counted.forwards),
            seconds=seconds_of(row, counted),
        )
        records.append(record)
    return records


def ended(prompt: Prompt, tokens: int) -> str:
    """Whether the limit of tokens ended an answer."""
    return "length" if tokens >= prompt["max_new_tokens"] else ""


def seconds_of(row: dict[str, Any], counted: Statistics) -> tuple[float | None, ...]:
    """Seconds of the strict and of the loose answer; empty unless both were single requests."""
    seconds = (row.get("seconds"), counted.seconds.get("answer"))
    return () if None in seconds else seconds


def card_of(
    setup: Setup,
    finding: Finding,
    place: int,
    records: Sequence[Record],
    scope: dict[str, Any],
) -> Card:
    """What the records say about one setting of the sequence, at the headline budget."""
    request = finding.request
    method = finding.method
    settings = method.settings(finding.selection.settings[place])
    design = Design(stop=request.stop, ternary=setup.scorer.ternary)
    budget = request.headline_budget
    row = tested(records, setup.task.metric, Claim(budget), request.confidence, design)
    values = " ".join(f"{name} {value}" for name, value in settings.items())
    card = Card.of(
        "setting",
        joined([row], budget, request.confidence, "each"),
        design,
        records,
        baseline={"path": "strict decoding"},
        candidate={
            "path": f"{method.rule} {values}",
            "rule": method.rule,
            "settings": {name: str(value) for name, value in settings.items()},
            "drafter": method.drafter,
            "block": method.block,
        },
        looks=setup.params.calibrate.looks,
        scope=scope,
    )
    return replace(card, made="")  # equal runs give equal bytes
