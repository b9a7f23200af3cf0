"""The command that describes a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")]) -> None:
    """Say what a gate is: its partners, features and certified settings."""
    from gistgate.cli import show
    from gistgate.gates.gate import Gate
    from gistgate.plain import printable

    loaded = Gate.load(gate)
    typer.echo(printable(show.described(loaded.config, loaded.proof)))
