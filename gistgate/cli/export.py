"""The command that makes a folder which plain transformers can run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from gistgate.errors import UserError


def export(
    gate: Annotated[Path, typer.Argument(help="Folder of a trained gate.")],
    out: Annotated[Path, typer.Argument(help="New folder.")],
) -> None:
    """Copy a gate with its certificate and the code that `generate` of plain transformers needs for it."""
    from gistgate.cli import show
    from gistgate.files import write_atomic
    from gistgate.gates.gate import Gate
    from gistgate.integrations.transformers.flatten import write_code

    loaded = Gate.load(gate)
    if out.exists():
        raise UserError(f"{out} exists already. Name a new folder.")

    def write(part: Path) -> None:
        shutil.copytree(gate, part)
        write_code(part)

    write_atomic(out, write)
    typer.echo(f"{out} is written.\n{show.described(loaded.config, loaded.proof)}")
