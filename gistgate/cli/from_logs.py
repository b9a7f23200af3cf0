"""`gistgate certify` from the logs of two runs, without a server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from gistgate.cli.options import needing
from gistgate.cli.outcome import carded
from gistgate.core.files import check_folder, fingerprint
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.certify.card import Card
    from gistgate.certify.joint import How
    from gistgate.cli.certify import Options

SECOND_LOOK = (
    "Another choice of tasks or of the metric is a second look: plan it from the start (--looks 2),"
    " or evaluate both runs on fresh documents."
)


def are_logs(options: Options) -> bool:
    """Whether logs are named, and not the addresses of two servers."""
    if options.recompute:
        return True
    return any(name and "://" not in name for name in (options.strict, options.loose))


def from_logs(options: Options, as_json: bool) -> str:
    """The verdict about two runs, or about the records of a card, which is shown."""
    make = partial(certify_logs, options)
    if options.recompute:
        make = partial(certify_again, options.recompute)
    return carded(make, as_json, options.junit)


def certify_again(path: Path) -> tuple[Card, Path]:
    """Compute a card from its records, whether it is about servers or about runs."""
    with needing("endpoints"):
        from gistgate.certify.records import recomputed
    return recomputed(path), path


def certify_logs(options: Options) -> tuple[Card, Path]:
    """Read both runs, pair them, take the look, test and write the card."""
    with needing("endpoints"):
        from gistgate.certificates.ledger import Ledger, Look
        from gistgate.certify.card import Card, fingerprint_of
        from gistgate.certify.joint import Design, How, judged
        from gistgate.certify.logs import read_run
        from gistgate.certify.paired import paired
        from gistgate.certify.records import write_card
    for name in (options.strict, options.loose):
        if "://" in name or not name:
            raise UserError(
                "A run is compared with a run and a server with a server. Name two files or folders"
                " with --baseline and --candidate."
            )
    if options.joint not in get_args(How):
        raise UserError(
            f"There is no joint verdict '{options.joint}'. Use one of: {', '.join(get_args(How))}."
        )
    plan = options.plan()
    folder = options.out or Path()
    check_folder(folder)
    with needing("inspect"):
        baseline = read_run(options.strict, options.metric)
        candidate = read_run(options.loose, options.metric)
    if Path(options.strict).resolve() == Path(options.loose).resolve():
        raise UserError("Both runs are the same files. Name those of two runs.")
    patterns = [name.strip() for name in (options.task or "").split(",") if name.strip()]
    records = paired(baseline, candidate, patterns)
    metrics = {task: log.metric for task, log in baseline.tasks.items()}
    tested = fingerprint(fingerprint_of(records), metrics)
    look = Look(
        claim=f"logs: {candidate.name} against {baseline.name}",
        marks=[record.mark for record in records],
        spent=1 - plan.confidence,
        error=1 - options.confidence,
        tested=tested,  # fixed: a repetition spends nothing, with another budget or --joint either
        remedy=SECOND_LOOK,
    )
    ledger = Ledger(options.ledger)
    ledger.check(look)
    how = cast("How", options.joint)
    joint = judged(records, metrics, options.budget, plan.confidence, how)
    ledger.record(look)
    card = Card.of(
        "certificate-logs",
        joint,
        Design(),
        records,
        baseline=baseline.described,
        candidate=candidate.described,
        looks=ledger.looks_at(look.marks),
    )
    return card, write_card(card, records, folder)
