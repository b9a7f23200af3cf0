"""How `gistgate certify` ends: with the verdict, its card and an exit status that says it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gistgate.cli.options import needing
from gistgate.core.utils import UserError, printable

if TYPE_CHECKING:
    from gistgate.certify.card import Card

STATUSES = {"PASS": 0, "FAIL": 1, "UNDECIDED": 3, "QUICK": 0}
"""Exit status by verdict; a quick look claims nothing."""
CANNOT = 2
"""Exit status of a run that gave no verdict."""


def conclude(make: Callable[[], str]) -> None:
    """End with the status of the verdict that `make` gives, or of a run that gave none."""
    try:
        verdict = make()
    except (UserError, OSError) as error:
        sentence = " ".join(str(error).split())
        if isinstance(error, BrokenPipeError):
            silence()
            sentence = "The output was closed before there was a verdict."
        elif isinstance(error, OSError):
            sentence += ". Mend that, and repeat."
        with suppress(OSError):  # a full disk
            typer.echo(printable(sentence), err=True)
        raise typer.Exit(CANNOT) from error
    raise typer.Exit(STATUSES[verdict])


def carded(make: Callable[[], tuple[Card, Path]], as_json: bool, junit: Path | None) -> str:
    """Make a card, show it, and write the report of tests if one is wanted; returns the verdict."""
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # the plan is no JSON
        card, path = make()
    text = f"{card.text}\ncard: {path}"
    if as_json:
        text = json.dumps({"path": str(path), "certificate": asdict(card)})
    try:
        typer.echo(text)
    except OSError as error:  # nobody reads it any more, or a full disk
        silence()
        cause = "closed early" if isinstance(error, BrokenPipeError) else error.strerror
        typer.echo(
            f"The output could not be written ({cause}). {card.sentence} (card {path})", err=True
        )
    if junit:
        with needing("endpoints"):
            from gistgate.certify.records import write_junit
        write_junit(junit, card)
    return card.verdict


def silence() -> None:
    """Send further output nowhere, as nobody reads it and Python would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
