"""Copy the results of the study into Git: docs/results/real, the tables of docs/real.md and the README, the gate.

python -m pipeline.studies.real.publish [--folder .scratch/real]

Each pair and task has a folder of results and a table of its own. The gate goes to models/gates/<pair>-<task>: head,
card and certificate. Weights of models are never copied. Nothing is written unless everything is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from gistgate.certificates.certificate import CERTIFICATE_FILE
from gistgate.certificates.looks import PUBLISHED
from gistgate.errors import UserError
from gistgate.files import read_json, read_text, write_atomic
from gistgate.gates.gate import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from gistgate.identity import portable_name
from pipeline.common.code import REPORTING, write_published
from pipeline.common.entry import run
from pipeline.common.paths import EXPORT, PAIR_REPORT, PAIRS, REPORTS, RESULTS
from pipeline.pairs.source import read_pair
from pipeline.report import markers, tables
from pipeline.report.gates import GATES, gates_table
from pipeline.report.looks import publish_looks
from pipeline.report.origin import check_finished, line, origin
from pipeline.report.publish import MODULES, PART, copy_results
from pipeline.studies.real.label_costs import LABELS, PASSES, costs_in, label_costs
from pipeline.studies.real.study import FOLDER, PROPOSAL, WITH_TABLE

PAGE, README = Path("docs/real.md"), Path("README.md")
NOTHING = "No run of a pretrained pair is published yet."
GATE_FILES = (CONFIG_FILE, WEIGHTS_FILE, CARD_FILE, CERTIFICATE_FILE)
TIMES = "benchmark.json"
"""Seconds and tokens of every contender by prompt, from which the ratios of the summary were computed."""
LIST, SHORT = "gates", "real"
"""The parts of the README that list the gates and show the tables."""


def main(folder: Annotated[Path, typer.Option(help="The copy in which the study ran.")] = FOLDER) -> None:
    reports = reports_of(folder)
    check_finished(*goals_of(reports), root=folder)
    publish_all(folder, RESULTS / "real", origin(modules_of(reports), folder))


def reports_of(folder: Path) -> Path:
    """Where the copy reported: the large table, if the study has one."""
    table = REPORTS / "table"
    return table if (folder / table / "summary.json").exists() else REPORTS


def goals_of(reports: Path) -> tuple[str, ...]:
    """What had to be made for these reports and for the gate beside them, which those of the table do not wait for."""
    return ("dvc.yaml",) if reports == REPORTS else WITH_TABLE


def modules_of(reports: Path) -> list[str]:
    """What makes these reports."""
    return sorted(REPORTING if reports == REPORTS else {*REPORTING, *MODULES["table"]})


def publish_all(
    folder: Path, results: Path, code: dict[str, Any], pages: Path = Path(), ledger: Path = PUBLISHED
) -> None:
    """Publish what the study left in `folder`; `pages` holds README.md, docs and models.

    Raises:
        UserError: the study has not finished, its calibration prompts were published with another choice, or a page
            lost its comments.
    """
    reports = folder / reports_of(folder)
    summary, export = read_json(reports / "summary.json"), folder / EXPORT
    for name in GATE_FILES:
        if not (export / name).is_file():
            raise UserError(f"There is no {export / name}. Run the study to its end (`make real`) before publishing.")
    for page, name in ((pages / PAGE, PART), (pages / README, LIST), (pages / README, SHORT)):
        markers.split(read_text(page), name)
    own = f"{summary['pair']}-{summary['task']}"
    with entered(sorted({folder / REPORTS / "calibration", reports / "calibration"}), results / own, ledger):
        copy_results(reports, results / own, code)
    if (folder / PROPOSAL).exists():
        write_atomic(results / own / PROPOSAL, partial(shutil.copyfile, folder / PROPOSAL))
    if (folder / PAIR_REPORT).exists():
        names = read_pair(summary["pair"], folder / PAIRS).names
        write_published(results / own / PAIR_REPORT.name, without_folders(read_json(folder / PAIR_REPORT), names), code)
    write_published(results / own / TIMES, read_json(reports / TIMES), code)
    if costs := costs_in(folder / REPORTS):
        write_published(results / own / LABELS, {PASSES: costs}, code)
    write_atomic(pages / GATES / own, partial(copy_gate, export))
    markers.renew(pages / PAGE, PART, "\n\n".join(sections(results)))
    markers.renew(pages / README, LIST, gates_table(pages / GATES))
    markers.renew(pages / README, SHORT, short(results))
    print(f"{results / own}, {PAGE}, {README} and {GATES / own} are written.")


@contextmanager
def entered(calibrations: Sequence[Path], own: Path, ledger: Path) -> Iterator[None]:
    """Enter all looks into the ledger once the body has written the results, or none of them."""
    with TemporaryDirectory() as scratch:
        trial = Path(scratch) / ledger.name
        if ledger.exists():
            shutil.copyfile(ledger, trial)
        for folder in calibrations:
            publish_looks(folder, own / "summary.json", trial)
        yield
        if trial.exists():
            write_atomic(ledger, partial(shutil.copyfile, trial))


def sections(results: Path) -> Iterator[str]:
    """For each published pair and task its table, its code, and what its labels cost."""
    for path in sorted(results.glob("*/summary.json")):
        summary = read_json(path)
        yield f"### {path.parent.name}\n\n{tables.markdown(summary)}\n\n{tables.lead(summary)} {line(summary)}"
        yield from label_costs(path.parent)


def without_folders(report: dict[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
    """What the stage `pair` found, with the models' names in place of folders of this machine."""
    return {
        key: {**one, "model": names.get(key) or portable_name(one["model"])} if isinstance(one, dict) else one
        for key, one in report.items()
    }


def short(results: Path) -> str:
    """What the README shows: the tables alone."""
    shown = [tables.markdown(read_json(path)) for path in sorted(results.glob("*/summary.json"))]
    return "\n\n".join(shown) or NOTHING


def copy_gate(source: Path, place: Path) -> None:
    """The files of an exported gate that its users need; the code beside them comes with the library."""
    place.mkdir()
    for name in GATE_FILES:
        shutil.copyfile(source / name, place / name)


if __name__ == "__main__":
    run(main)
