"""Carry the finished stages of a study to another machine, or keep them beside the code.

    python -m pipeline.studies.real.carry FOLDER             from the copy in .scratch/real into FOLDER
    python -m pipeline.studies.real.carry FOLDER --back      from FOLDER into the copy; then start the study as usual

FOLDER becomes a remote of DVC: every output lies in it once, under its hash. Beside them lie the locks, the measured K,
finished pieces of unfinished stages, and the list of looks at calibration prompts, without which a prompt could be
judged twice. A stage whose parameters, code or inputs changed in the meantime runs again, as after any other change.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gistgate.certificates.ledger import Ledger
from gistgate.certificates.looks import LOCAL
from gistgate.errors import UserError
from gistgate.files import write_atomic
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH, STUDIES
from pipeline.smoke import copy_project, dvc
from pipeline.studies.real.study import FOLDER, PROPOSAL

LOCK = Path("dvc.lock")
BESIDE = (LOCK, STUDIES / "table" / LOCK, PROPOSAL, LOCAL)
"""What DVC does not keep, relative to the copy."""


def main(
    kept: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the finished stages are kept.")],
    folder: Annotated[Path, typer.Option(help="The copy in which the study runs.")] = FOLDER,
    back: Annotated[bool, typer.Option("--back", help="Bring them back into the copy.")] = False,
) -> None:
    source, goal = (kept, folder) if back else (folder, kept)
    if not (source / LOCK).exists():
        raise UserError(f"{source} holds no finished stage. Name the folder of a study that was started or carried.")
    check_looks(source, goal)
    if back:
        folder.mkdir(parents=True, exist_ok=True)
        copy_project(folder, changes=())
    pieces = (path.relative_to(source) for path in (source / SCRATCH).rglob("*") if path.is_file())
    for path in [*(path for path in BESIDE if (source / path).exists()), *pieces]:
        write_atomic(goal / path, partial(shutil.copyfile, source / path))
    dvc(folder, "remote", "add", "--local", "--force", "--default", "kept", str(kept.resolve()))
    dvc(folder, *(("pull", "--allow-missing") if back else ("push",)))


def check_looks(source: Path, goal: Path) -> None:
    """Refuse to replace a list of looks by one that lacks some of them: those prompts could be judged again.

    Raises:
        UserError: it would happen, or a ledger was edited.
    """
    taken, there = ([look.hash for look in Ledger.read(place / LOCAL).looks] for place in (source, goal))
    if taken[: len(there)] != there:
        raise UserError(
            f"{goal} knows looks at calibration prompts that {source} lacks, and they would be lost. Carry in the "
            "other direction, or into a new folder."
        )


if __name__ == "__main__":
    run(main)
