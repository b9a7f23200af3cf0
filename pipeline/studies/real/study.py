"""A pair of pretrained models through the whole pipeline, from `pair` to `report`, in a copy of the project.

    python -m pipeline.studies.real.study                                   hub ids; set HF_HUB_OFFLINE=0 to fetch them
    python -m pipeline.studies.real.study --models ~/models --data ~/gsm8k  folders instead of the hub
    python -m pipeline.studies.real.study --params other.yaml --folder /scratch/other

The copy lies in .scratch/real and stays: after an interruption the same command goes on there, and the project's own
results and dvc.lock remain as they are. K is measured once, behind the stage `prompts`, and written into the copy's
parameters. `python -m pipeline.studies.real.publish` copies the results into docs/results/real.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json, write_text
from gistgate.rules import RULES
from pipeline.common.entry import run
from pipeline.common.paths import DOCUMENTS_NOTE, PAIRS, PARAMS, SCRATCH, STUDIES
from pipeline.common.reading import nearest
from pipeline.common.yaml_file import read_yaml
from pipeline.pairs.source import ModelSource, read_pair
from pipeline.smoke import ROOT, TABLE, copy_project, dvc, environment, merged
from pipeline.studies.real.params import FILE, ProposeParams, RealParams, read_study

FOLDER = SCRATCH / "real"
PROPOSAL = Path("block.json")
"""In the copy: the measured K."""
GIVEN, DOCUMENTS = Path("models/given"), Path("data/given")
"""In the copy: links to the folders of models, by role, and of documents that the command line names."""
WITH_TABLE = ("export", "trace", (STUDIES / "table/dvc.yaml").as_posix())
"""What runs where the large table is made as well. The table's benchmark and report cover the core methods,
so that those of the core do not run: timing every method again would take longer than any other stage."""


def main(
    models: Annotated[Path | None, typer.Option(help="Folder of models that replaces the hub.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of .jsonl files that replaces the task's data.")] = None,
    params: Annotated[Path, typer.Option(help="File of the pair, the task and the sizes.")] = FILE,
    folder: Annotated[Path, typer.Option(help="Where the copy of the project lies.")] = FOLDER,
    until: Annotated[str | None, typer.Option(help="Last stage to run; default: all.")] = None,
) -> None:
    study, place = read_study(params), folder.resolve()
    changes = study.changes if data is None else {**study.changes, "task_data": DOCUMENTS.as_posix()}
    asked = asked_of(study)
    prepare(place, with_k(changes, place, asked), {} if models is None else local_folders(study, existing(models)))
    if data is not None:
        lay_documents(place, existing(data))
    prepare_table(place, study.rules)
    if study.propose is not None:
        dvc(place, "repro", "prompts")
        propose(place, params, asked)
        prepare_params(place, with_k(changes, place, asked))
    if until is not None:
        dvc(place, "repro", until)
    else:
        dvc(place, "repro", *(WITH_TABLE if study.rules else ()))


def existing(folder: Path) -> Path:
    """The folder as an absolute path, which means the same in the copy.

    Raises:
        UserError: there is no such folder.
    """
    found = folder.expanduser()  # the Makefile quotes the name, so that no shell does it
    if not found.is_dir():
        raise UserError(f"There is no folder {folder}. Name one that exists.")
    return found.resolve()


def local_folders(study: RealParams, models: Path) -> dict[str, str]:
    """The folder of each role.

    Raises:
        UserError: one of them is missing.
    """
    for name in study.folders.values():
        if not (models / name).is_dir():
            known = [path.name for path in models.iterdir() if path.is_dir()]
            raise UserError(f"There is no model {models / name}. {nearest(name, known, 'folders')}")
    return {role: str(models / name) for role, name in study.folders.items()}


def lay_documents(place: Path, data: Path) -> None:
    """Link the documents into the copy, and note their content where every stage that reads the task depends on it."""
    link(place / DOCUMENTS, data)
    write_json(place / DOCUMENTS_NOTE, {"fingerprint": fingerprint(data)})


def link(place: Path, folder: Path | str) -> None:
    """Let `place` lead to a folder: paths in the copy then are the same on every machine."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(folder, target_is_directory=True)


def prepare(place: Path, changes: dict[str, Any], folders: dict[str, str]) -> None:
    """Copy the project, over an unfinished copy if there is one, with the study's parameters and model folders."""
    place.mkdir(parents=True, exist_ok=True)
    copy_project(place, changes=())
    prepare_params(place, changes)
    pair, source = place / PAIRS / f"{changes['pair']}.yaml", read_pair(changes["pair"], place / PAIRS)
    moved = {role: in_folder(getattr(source, role), role, Path(folder).name) for role, folder in folders.items()}
    for role, folder in folders.items():
        link(place / GIVEN / role, folder)
    write_text(pair, yaml.safe_dump(merged(read_yaml(pair), moved), sort_keys=False))


def in_folder(source: ModelSource, role: str, folder: str) -> dict[str, str]:
    """The keys of a model in a folder of this name; a hub id becomes its name, by which others can find it."""
    name = source.name or (folder if source.is_folder else source.model)
    return {"model": (GIVEN / role).as_posix(), "name": name}


def prepare_params(place: Path, changes: dict[str, Any]) -> None:
    """Write the copy's params.yaml."""
    content = merged(read_yaml(ROOT / PARAMS), changes)
    write_text(place / PARAMS, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def prepare_table(place: Path, rules: tuple[str, ...]) -> None:
    """Write the copy's file of the large table, which compares these rules besides the core methods and no others.

    Raises:
        UserError: there is no such rule.
    """
    if unknown := next((name for name in rules if name not in RULES), None):
        raise UserError(f"There is no rule '{unknown}' to compare. {nearest(unknown, RULES)}")
    chosen = {"skip": [name for name in RULES if name not in rules], "mixed": {}}
    write_text(place / TABLE, yaml.safe_dump({**read_yaml(ROOT / TABLE), **chosen}, sort_keys=False))


def asked_of(study: RealParams) -> str:
    """Fingerprint of what a measured K belongs to."""
    return fingerprint(study.changes.get("pair"), study.changes.get("task"), asdict(study.propose or ProposeParams()))


def with_k(changes: dict[str, Any], place: Path, asked: str) -> dict[str, Any]:
    """The changes with the K that was measured for this pair and task, as soon as there is one."""
    found = read_json(place / PROPOSAL) if (place / PROPOSAL).exists() else {}
    return merged(changes, {"decoding": found["decoding"] if found.get("asked") == asked else {}})


def propose(place: Path, params: Path, asked: str) -> None:
    """Measure K in the copy unless an earlier start did: a repeated measurement would make all results out of date.

    What was measured for another pair or task, or among other K, is measured again.

    Raises:
        UserError: the measurement failed; its own sentence stands above.
    """
    if (place / PROPOSAL).exists() and read_json(place / PROPOSAL).get("asked") == asked:
        return
    command = [sys.executable, "-m", "pipeline.studies.real.propose", "--params", str(params.resolve())]
    if subprocess.run(command, cwd=place, env=environment(place)).returncode:
        raise UserError("K could not be measured. The sentence above says why.")
    write_json(place / PROPOSAL, {**read_json(place / PROPOSAL), "asked": asked})


if __name__ == "__main__":
    run(main)
