"""The command that makes a folder which plain transformers can run."""

from __future__ import annotations

import os
import shutil
import stat
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
    from gistgate.integrations.transformers.flatten import FOLDER, write_code
    from gistgate.plain import printable

    loaded = Gate.load(gate)
    check_own(gate)
    if out.exists():
        raise UserError(f"{out} exists already. Name a new folder.")

    def write(part: Path) -> None:
        shutil.copytree(gate, part, ignore=shutil.ignore_patterns(FOLDER))
        for place in [part, *(path for path in part.rglob("*") if path.is_dir())]:
            place.chmod(place.stat().st_mode | stat.S_IRWXU)  # the gate's own folder may be read-only
        write_code(part)

    write_atomic(out, write)
    typer.echo(printable(f"{out} is written.\n{show.described(loaded.config, loaded.proof)}"))


def check_own(folder: Path) -> None:
    """Refuse to copy what does not lie in a gate's folder, since links in it may lead to files of the user.

    Raises:
        UserError: a file is a link that leads out, or a device or a pipe.
    """
    from gistgate.plain import check_regular, inside

    for place, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = inside(place, name)
            if name in files or path.is_symlink():
                check_regular(path)
