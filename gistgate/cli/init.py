"""Write the files of a project in which `dvc repro` runs the whole pipeline for a pair and a task."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

import gistgate
from gistgate.cli.options import Chat, module_of
from gistgate.core.files import read_text, write_atomic, write_text
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import files_of, name_in
from gistgate.models.loading import GGUF, check_gguf, placed

# ---- The command that begins a project of one's own.


def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the project.")],
    target: Annotated[str | None, typer.Option(help="Target model: hub id, folder or GGUF file.")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model: hub id, folder or GGUF file.")] = None,
    drafter: Annotated[
        str | None, typer.Option(help="In place of a draft model: suffix or lookup, which copy from the text.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="gsm8k, a YAML file, or any lm-eval task; default: a file to fill in.")
    ] = None,
    target_revision: Annotated[str | None, typer.Option(help="Revision of the target on the hub.")] = None,
    draft_revision: Annotated[str | None, typer.Option(help="Revision of the draft on the hub.")] = None,
    target_gguf: Annotated[str | None, typer.Option(help="GGUF file in the target's folder or repository.")] = None,
    draft_gguf: Annotated[str | None, typer.Option(help="GGUF file in the draft's folder or repository.")] = None,
    dtype: Annotated[str, typer.Option(help="Type of the weights: float32, bfloat16 or float16.")] = "bfloat16",
    device_map: Annotated[str | None, typer.Option(help="Passed to from_pretrained, such as auto.")] = None,
    chat: Chat = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Let the pipeline train its own small pair instead of naming models.")
    ] = False,
) -> None:
    """Write a small project for a pair and a task, in which `dvc repro` makes a certified gate."""
    from gistgate.models.loading import DTYPES

    check_models(target, draft, drafter, embedded)
    of_draft = {"--draft-revision": draft_revision, "--draft-gguf": draft_gguf}
    of_target = {"--target-revision": target_revision, "--target-gguf": target_gguf, "--device-map": device_map}
    check_idle({**({} if draft else of_draft), **(of_target if embedded else {})})
    if dtype not in DTYPES[1:]:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES[1:])}.")
    task = task or (EMBEDDED_TASK if embedded else OWN_TASK)
    if not task.endswith((".yaml", ".yml")) and task not in (OWN_TASK, *shipped_tasks()):
        module_of("gistgate.lm_eval.task", "pipeline").check_name(task)
    wanted = Wanted(
        folder=folder,
        target=target or "",
        draft=draft or "",
        drafter=drafter,
        task=task,
        target_revision=target_revision,
        draft_revision=draft_revision,
        target_gguf=target_gguf,
        draft_gguf=draft_gguf,
        dtype=dtype,
        device_map=device_map,
        chat=chat,
    )
    for name in create(wanted):
        typer.echo(folder / name)
    fill = " Fill in data/tasks first." if task == OWN_TASK else ""
    typer.echo(f"The project is written.{fill} Run `dvc repro` in {folder}; its README.md says more.")


def check_models(target: str | None, draft: str | None, drafter: str | None, embedded: bool) -> None:
    """A project has a target and something that drafts, or it trains its own pair.

    Raises:
        UserError: one of them is missing, or there is one too many.
    """
    from gistgate.models.loading import RETRIEVAL

    if embedded and (target or draft or drafter):
        raise UserError(
            "--embedded trains a pair of its own. Leave --target, --draft and --drafter away, or leave it away."
        )
    if drafter not in (None, *RETRIEVAL):
        raise UserError(f"There is no drafter '{drafter}' for a project. Use one of: {', '.join(RETRIEVAL)}.")
    if not embedded and not (target and bool(draft) != bool(drafter)):
        raise UserError(
            "A project needs --target and either --draft, or --drafter suffix or lookup for a target without a draft "
            "model. --embedded takes the small pair that is trained on the spot."
        )


def check_idle(idle: dict[str, str | None]) -> None:
    """Refuse options about a model that the project does not have.

    Raises:
        UserError: names the first.
    """
    named = next((option for option, value in idle.items() if value is not None), None)
    if named is not None:
        raise UserError(f"{named} is about a model that this project does not name. Name the model, or leave it out.")


PACKAGE = "gistgate.cli"
EMBEDDED, EMBEDDED_TASK = "embedded", "wordproblems"
"""The pair that the pipeline trains from scratch, and the task of its world."""
OWN_TASK = "own"
"""Name of the task whose file is to be filled in."""
NEW = ".gistgate-new"
"""Folder inside an empty one in which a project is written before its files move out of it."""
SAMPLE = [{"question": "Tom has 5 apples and buys 4 more. How many apples has Tom?", "answer": "9"}]
"""Documents that show the form of an own task's documents."""


@dataclass(frozen=True)
class Wanted:
    """What a user says about a new project."""

    folder: Path
    """Folder of the project; it has to be new or empty."""
    target: str = ""
    """Hub id or folder of the target; empty for the embedded pair."""
    draft: str = ""
    """Hub id or folder of the draft model; empty for the embedded pair and where `drafter` is named."""
    drafter: str | None = None
    """A retrieval drafter in place of a draft model."""
    task: str = OWN_TASK
    """A task that comes along, a YAML file, or the name of an lm-eval task."""
    target_revision: str | None = None
    draft_revision: str | None = None
    target_gguf: str | None = None
    """GGUF file in the target's folder or repository; a target that is itself such a file needs none."""
    draft_gguf: str | None = None
    dtype: str = "bfloat16"
    """Type of the weights in memory."""
    device_map: str | None = None
    chat: bool = False
    """Whether prompts are wrapped in the chat template."""

    @property
    def embedded(self) -> bool:
        """Whether the pipeline trains the pair."""
        return not self.target

    @property
    def pair(self) -> str:
        """Name of the pair: that of the folder, as far as a file may be called so."""
        return EMBEDDED if self.embedded else re.sub(r"[^\w.-]+", "-", self.folder.resolve().name)


def create(wanted: Wanted) -> list[str]:
    """Write the project, whole or not at all; returns the names of its files.

    Raises:
        UserError: the folder is in use, a local model or a task file is missing, or the folder cannot be written.
    """
    if wanted.folder.exists() and (not wanted.folder.is_dir() or any(wanted.folder.iterdir())):
        raise UserError(f"{wanted.folder} is not empty. Name a new folder for the project.")
    contents = {**settings_files(wanted), **pair_files(wanted), **task_files(wanted)}

    def write(part: Path) -> None:
        for name, text in contents.items():
            write_text(part / name, text)

    if not wanted.folder.is_dir():
        write_atomic(wanted.folder, write)
        return sorted(contents)
    new = wanted.folder / NEW  # a folder in which somebody may stand stays itself
    write_atomic(new, write)
    for path in sorted(new.iterdir()):
        path.replace(wanted.folder / path.name)
    new.rmdir()
    return sorted(contents)


def settings_files(wanted: Wanted) -> dict[str, str]:
    """The files that do not depend on models or documents."""
    parent = wanted.folder.resolve()
    scm = "" if any((above / ".git").exists() for above in parent.parents) else "    no_scm = true\n"
    small = wanted.embedded
    return {
        ".dvc/config": f"[core]\n    analytics = false\n{scm}",
        ".gitignore": filled("gitignore"),
        "README.md": filled("README.md", name=parent.name, pair=wanted.pair),
        "dvc.yaml": shared("graph.yaml"),
        "params.yaml": filled(
            "params.yaml",
            pair=json.dumps(wanted.pair),  # a name such as 2024 would be a number without quotation marks
            task=json.dumps(task_name(wanted.task)),
            chat=str(wanted.chat).lower(),
            rows="128" if small else "32",
            workers="2" if small else "1",
        ),
        "requirements.txt": f"gistgate[{extras(wanted)}]=={gistgate.__version__}\n",
    }


def extras(wanted: Wanted) -> str:
    """What the project needs besides the library."""
    named = [wanted.target_gguf, wanted.draft_gguf]
    is_gguf = any(named) or any(name.endswith(GGUF) for name in (wanted.target, wanted.draft))
    return "pipeline,gguf" if is_gguf else "pipeline"


def pair_files(wanted: Wanted) -> dict[str, str]:
    """The pair's file; a local folder is named by its absolute path, since stages run in the project."""
    if wanted.embedded:
        return {f"models/pairs/{EMBEDDED}.yaml": shared("embedded.yaml")}
    target, target_gguf = located(wanted.target, wanted.target_gguf)
    draft, draft_gguf = ("", None) if wanted.drafter else located(wanted.draft, wanted.draft_gguf)
    values = {
        "target": target,
        "target_revision": wanted.target_revision,
        "target_gguf": target_gguf,
        "draft": draft,
        "draft_revision": wanted.draft_revision,
        "draft_gguf": draft_gguf,
        "drafter": wanted.drafter,
        "dtype": wanted.dtype,
        "device_map": wanted.device_map,
    }
    text = as_yaml("target.yaml", values) + as_yaml("drafter.yaml" if wanted.drafter else "draft.yaml", values)
    return {f"models/pairs/{wanted.pair}.yaml": text}


def as_yaml(template: str, values: dict[str, str | None]) -> str:
    """A template with its values as YAML; a JSON text is a YAML text too, whatever characters a path has."""
    return filled(template, **{name: json.dumps(value) for name, value in values.items()})


def located(model: str, gguf: str | None) -> tuple[str, str | None]:
    """Folder or hub id of a model, and the GGUF file in it; a model that is such a file becomes both.

    Raises:
        UserError: a folder or a file that is missing.
    """
    name, place = placed(model, gguf)
    folder, file = local(name), place.get("gguf_file")
    if Path(folder).is_dir():
        check_gguf(folder, place)
    return folder, file


def local(model: str) -> str:
    """A folder as an absolute path; a hub id as it is.

    Raises:
        UserError: a path that leads nowhere.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise UserError(f"The model folder {model} is missing. Correct the path, or name a model on the hub.")
    return model


def task_files(wanted: Wanted) -> dict[str, str]:
    """The task's file to edit; for a task of lm-eval only a note, because DVC wants the folder."""
    name, place = task_name(wanted.task), "data/tasks"
    if wanted.task.endswith((".yaml", ".yml")):
        if not Path(wanted.task).is_file():
            raise UserError(f"The task file {wanted.task} is missing. Correct the path.")
        check_task_name(Path(wanted.task))
        return {**own_files(Path(wanted.task), place), f"{place}/{name}.yaml": read_text(wanted.task)}
    if name in shipped_tasks():
        task = Path(str(files(PACKAGE) / f"shared/tasks/{name}.yaml"))
        documents = task.with_name(name.replace("-", "_")).glob("*.jsonl")
        beside = {f"{place}/{file.relative_to(task.parent).as_posix()}": file.read_text() for file in documents}
        return {**own_files(task, place), **beside}
    if name == OWN_TASK:
        lines = "".join(json.dumps(row) + "\n" for row in SAMPLE)
        documents = {f"{place}/documents/{split}.jsonl": lines for split in ("train", "test")}
        return {f"{place}/{name}.yaml": filled("task.yaml", task=name), **documents}
    return {f"{place}/README.md": f"The task {name} is lm-eval's own. A file {name}.yaml in this folder replaces it.\n"}


def check_task_name(path: Path) -> None:
    """Refuse a file whose task has another name than the file, since lm-eval looks for the task's own.

    Raises:
        UserError: the names differ.
    """
    named = name_in(read_text(path))
    if named not in (None, path.stem):
        raise UserError(f"The task in {path} is called '{named}'. Rename the file to {named}{path.suffix}.")


def own_files(task: Path, place: str) -> dict[str, str]:
    """A task's file with what it includes and the Python beside it.

    Raises:
        UserError: one of them lies outside the folder of the task's file, where a copy could not name it.
    """
    found = {}
    for path in files_of(task):
        inside = Path(os.path.relpath(path, task.parent))
        if ".." in inside.parts:
            raise UserError(f"The task file {task} takes in {path}, which lies outside its folder. Copy it into that.")
        found[f"{place}/{inside.as_posix()}"] = read_text(path)
    return found


def task_name(task: str) -> str:
    """The name by which params.yaml knows a task: that of its file, or the one that was given."""
    return Path(task).stem if task.endswith((".yaml", ".yml")) else task


def shipped_tasks() -> list[str]:
    """Names of the tasks whose files come with the package."""
    return sorted(
        Path(item.name).stem for item in (files(PACKAGE) / "shared/tasks").iterdir() if item.name.endswith(".yaml")
    )


def shared(name: str) -> str:
    """A file that is a copy of the repository's own; `make deps` writes the copies."""
    return (files(PACKAGE) / "shared" / name).read_text(encoding="utf-8")


def filled(template: str, /, **values: str) -> str:
    """A template with its values put in."""
    return Template((files(PACKAGE) / f"templates/{template}.template").read_text(encoding="utf-8")).substitute(values)
