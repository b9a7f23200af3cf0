"""Copy the results of the study into Git: docs/results/real, the table of docs/real.md, and the gate.

python -m pipeline.studies.real.publish [--folder .scratch/real]

The gate goes to models/gates/<pair>-<task>: head, card and certificate. Weights of models are never copied.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gistgate.certificates.certificate import CERTIFICATE_FILE
from gistgate.files import read_json, write_atomic
from gistgate.gates.gate import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from pipeline.common.code import REPORTING
from pipeline.common.entry import run
from pipeline.common.paths import EXPORT, MODELS, PAIR_REPORT, REPORTS, RESULTS
from pipeline.report.origin import origin
from pipeline.report.publish import publish
from pipeline.studies.real.study import FOLDER, PROPOSAL

PAGE = Path("docs/real.md")
GATES = MODELS / "gates"
GATE_FILES = (CONFIG_FILE, WEIGHTS_FILE, CARD_FILE, CERTIFICATE_FILE)


def main(folder: Annotated[Path, typer.Option(help="The copy in which the study ran.")] = FOLDER) -> None:
    publish_all(folder, RESULTS / "real", PAGE, GATES)


def publish_all(folder: Path, results: Path, page: Path, gates: Path) -> None:
    """Publish what the study left in `folder`.

    Raises:
        UserError: the study has not finished, or the page lost its markers.
    """
    summary = read_json(folder / REPORTS / "summary.json")
    publish(folder / REPORTS, results, page, origin(REPORTING))
    for name in (PAIR_REPORT, PROPOSAL):
        if (folder / name).exists():
            write_atomic(results / name.name, partial(shutil.copyfile, folder / name))
    gate = gates / f"{summary['pair']}-{summary['task']}"
    write_atomic(gate, partial(copy_gate, folder / EXPORT))
    print(f"{results}, {page} and {gate} are written.")


def copy_gate(source: Path, place: Path) -> None:
    """The files of an exported gate that its users need; the code beside them comes with the library."""
    place.mkdir()
    for name in GATE_FILES:
        shutil.copyfile(source / name, place / name)


if __name__ == "__main__":
    run(main)
