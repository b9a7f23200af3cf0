"""`gistgate certify` from the logs of two runs, without a server."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from gistgate.cli.options import needing
from gistgate.cli.promise import written
from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError, printable

if TYPE_CHECKING:
    from gistgate.certify.joint import How
    from gistgate.certify.records import LogsCertificate
    from gistgate.cli.certify import Options

STATUSES = {"PASS": 0, "FAIL": 1, "UNDECIDED": 3}
"""Exit status by verdict."""
CANNOT = 2
"""Exit status of a run that gave no verdict."""
SECOND_LOOK = (
    "Another choice of tasks or of the metric is a second look: plan it from the start (--looks 2),"
    " or evaluate both runs on fresh documents."
)


def are_logs(options: Options) -> bool:
    """Whether logs are named, and not the addresses of two servers."""
    if options.recompute:
        return True
    return any(name and "://" not in name for name in (options.strict, options.loose))


def from_logs(options: Options, as_json: bool) -> None:
    """Give the verdict about two runs, or about a card, and end with its status."""
    try:
        with needing("calibrate"):
            from gistgate.certify.records import recomputed, write_junit
        if options.recompute:
            certificate = recomputed(options.recompute)
            entries = {"path": str(options.recompute), "certificate": asdict(certificate)}
            typer.echo(json.dumps(entries) if as_json else certificate.text)
        else:
            certificate = written(partial(certify_logs, options), attrgetter("text"), as_json)
        if options.junit:
            write_junit(options.junit, certificate)
    except (UserError, OSError) as error:
        typer.echo(printable(" ".join(str(error).split())), err=True)
        raise typer.Exit(CANNOT) from error
    raise typer.Exit(STATUSES[certificate.verdict])


def certify_logs(options: Options) -> tuple[LogsCertificate, Path]:
    """Read both runs, pair them, take the look, test and write the card."""
    with needing("calibrate"):
        from gistgate.certificates.ledger import Ledger, Look
        from gistgate.certify.joint import How, judged
        from gistgate.certify.logs import read_run
        from gistgate.certify.paired import paired
        from gistgate.certify.records import LogsCertificate, fingerprint_of, write_card
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
    certificate = LogsCertificate.of(joint, records, baseline, candidate)
    return certificate, write_card(certificate, records, options.out or Path())
