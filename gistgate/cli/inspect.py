"""The command that describes a gate."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gistgate.cli.options import AsJson


def inspect(
    gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")],
    as_json: AsJson = False,
) -> None:
    """Say what a gate is: its partners, features and certified settings."""
    from gistgate.cli import show
    from gistgate.gates.gate import Gate
    from gistgate.plain import printable

    loaded = Gate.load(gate)
    if as_json:
        proof = loaded.proof and asdict(loaded.proof)
        typer.echo(json.dumps({"config": asdict(loaded.config), "certificate": proof}, default=str))
        return
    typer.echo(printable(show.described(loaded.config, loaded.proof)))
