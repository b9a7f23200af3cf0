"""Run the pipeline on tiny sizes in two fresh copies with one seed, and compare every artefact.

    python -m tests.faults.copies --folder .scratch/copies

A second call goes on where the first was stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gistgate.errors import UserError
from pipeline import smoke
from pipeline.common.entry import run
from tests.faults import results
from tests.faults.kills.compare import differing, files


def main(folder: Annotated[Path, typer.Option(help="Place of both copies.")] = Path(".scratch/copies")) -> None:
    """Run both, then compare."""
    copies = [folder / "one", folder / "two"]
    for copy in copies:
        if not (copy / "dvc.yaml").exists():
            smoke.copy_project(copy)
        smoke.dvc(copy, "repro")
    found = differing(*copies)
    results.add(copies_artefacts=len(files(copies[0])), copies_differing=len(found))
    if found:
        raise UserError(f"Two copies with one seed differ in {', '.join(found)}.")
    print(f"{len(files(copies[0]))} artefacts of two copies are equal, measured seconds apart.")


if __name__ == "__main__":
    run(main)
