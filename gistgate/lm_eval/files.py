"""The files of a task, and what they say before any document is loaded."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from gistgate.core.utils import UserError, replaced
from gistgate.models.options import JSON, TABLES, read_rows
from gistgate.tasks.task import TASKS

log = logging.getLogger(__name__)

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
NO_TEXT = "The task '{}' is not an ordinary `generate_until` task. Choose one that is."
NO_TRAINING = "The task '{}' has no training split. Choose one that names a `training_split`."
INCLUDE = re.compile(r"^include:\s*['\"]?([^\s'\"]+)", re.MULTILINE)
NAME = re.compile(r"^task:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
YAML = (".yaml", ".yml")  # endings of a task's file
FORMATS = ("json", "csv", "text", "parquet", "arrow", "pandas", "xml")
"""Values of `dataset_path` whose `data_files` lie here; those of a data set lie on the hub."""
WILD = re.compile(r"[*?\[]")  # in a path that stands for several
DOCUMENTS = TASKS / "documents"
PLACES = ("dataset_path", "dataset_kwargs")  # keys that say where documents lie
FUNCTION = re.compile(r"!function\s+['\"]?([\w./-]+)\.\w+")


def entry_of(name: str, folder: Path | None) -> tuple[TaskManager, Any]:
    """The index of tasks, and what it knows of the task `name` before any document is loaded; the
    tasks are those of `folder` and lm-eval's own.
    """
    if folder is None:
        manager = TaskManager()
    else:
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        if name not in manager.all_tasks:
            log.info("The task '%s' is not in %s; scanning lm-eval's own tasks.", name, folder)
            manager = TaskManager(include_path=str(folder))
    entry = manager.task_index.get(name)
    if entry is None:
        places = f"{folder} or in lm-eval" if folder else "lm-eval"
        hint = hint_for(name, folder or TASKS, manager.all_subtasks)
        raise UserError(f"There is no task '{name}' in {places}. {hint}")
    if name not in manager.all_subtasks:
        raise UserError(f"'{name}' is a group of tasks. Name one task of it.")
    return manager, entry


def hint_for(name: str, folder: Path, tasks: list[str]) -> str:
    """What to do where there is no task of this name."""
    file = Path(name)
    if file.suffix in YAML:
        is_away = file.is_file() and file.parent.resolve() != folder.resolve()
        copied = f"copy the file to {folder} and " if is_away else ""
        return f"Tasks are named without folder and ending: {copied}write '{file.stem}'."
    near = difflib.get_close_matches(name, tasks, n=1)
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"Write {folder}/{name}.yaml or choose another task."


def local_data(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Settings that make the task read `<folder>/<split>.jsonl` (or .json) instead of the hub."""
    files = {}
    for split in sorted({config[key] for key in SPLITS if config.get(key)}):
        candidates = (folder / f"{split}.jsonl", folder / f"{split}.json")
        file = next((path for path in candidates if path.is_file()), None)
        if file is None:
            raise UserError(
                f"{folder / split}.jsonl is missing, and the task wants that split. Check"
                " `task_data`."
            )
        files[split] = str(file)
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}


def files_of(task: Path) -> list[Path]:
    """The file of a task, those that it includes and those beside it with its functions, each
    once.
    """
    if not task.is_file():
        return []
    text = task.read_text(encoding="utf-8")
    files = [task]
    for name in INCLUDE.findall(text):
        files += files_of(task.parent / name)
    for name in FUNCTION.findall(text):  # lm-eval looks for its module beside the YAML first
        module = task.parent / f"{name.replace('.', '/')}.py"
        if module.is_file():
            files.append(module)
    return list(dict.fromkeys(files))


# ---- The files with a task's documents.


def config_of(task: Path) -> dict[str, Any]:
    """What a task's file and those that it includes say."""
    try:
        config: dict[str, Any] = load_yaml(task, resolve_func=False)
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = " ".join(str(error).split())
        raise UserError(f"The task file {task} cannot be read ({cause}). Correct it.") from error
    return config


def data_names(config: dict[str, Any]) -> list[str]:
    """The files and folders here that a task names as its documents, as it names them."""
    source = str(config.get("dataset_path") or "")
    settings = config.get("dataset_kwargs") or {}
    if source not in FORMATS:
        return [source] if Path(source).is_absolute() or source.startswith(".") else []
    if settings.get("data_dir"):
        return [settings["data_dir"]]
    files = settings.get("data_files") or []
    names: list[str] = []
    for group in files.values() if isinstance(files, dict) else [files]:
        names += [group] if isinstance(group, str) else group
    return [name for name in names if "://" not in name]


def data_files(pattern: Path) -> list[Path]:
    """The files that a name of documents stands for: one, those of a folder, or those that fit."""
    if pattern.is_dir():
        return sorted(path for path in pattern.rglob("*") if path.is_file())
    if pattern.is_file():
        return [pattern]
    pattern = pattern.absolute()
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


@contextmanager
def checking_documents() -> Iterator[None]:
    """While open, a task whose documents lm-eval cannot load names the broken file and its line."""
    load = ConfigurableTask.download

    def load_or_name(task: Any, *arguments: Any, **settings: Any) -> None:
        try:
            load(task, *arguments, **settings)
        except Exception:  # of many libraries
            check_documents(vars(task.config))
            raise

    with replaced(ConfigurableTask, "download", load_or_name):
        yield


def check_documents(config: dict[str, Any]) -> None:
    """Refuse (UserError) files with documents in which JSON or a table is broken, with the line."""
    for name in data_names(config):
        for path in data_files(Path(name)):
            suffix = path.suffix.lower()
            if suffix not in (*JSON, *TABLES):
                continue
            rows = read_rows(str(path))
            if not rows:
                raise UserError(f"{path} holds no document. Write it again.")
            for place, row in rows:
                if not isinstance(row, dict):
                    raise UserError(f"{place} is no object with the fields of a document.")


def moved_documents(task: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """The names of a task's documents with those that they get in a project, and the files by their
    places in it; names of what is not here are left out.
    """
    names: dict[str, str] = {}
    files: dict[str, Path] = {}
    for name in data_names(config_of(task)):
        inside = name.removeprefix(f"{TASKS}/")  # as documents of a project are named
        for place in (Path(name), task.parent / name, task.parent / inside):
            pattern = place.parent.resolve() / place.name
            sources = data_files(pattern)
            if not sources:
                continue
            root = next(folder for folder in pattern.parents if not WILD.search(str(folder)))
            rest = pattern.relative_to(root)
            folder = Path(name).parents[len(rest.parts) - 1]
            if name == inside:  # told apart by the folders that they lie in
                folder = DOCUMENTS if root == task.parent.resolve() else DOCUMENTS / root.name
            names[name] = (folder / rest).as_posix()
            for source in sources:
                copy = (folder / source.relative_to(root)).as_posix()
                if files.setdefault(copy, source) != source:
                    raise UserError(
                        f"The task {task} takes in {files[copy]} and {source}. Give their folders"
                        " different names."
                    )
            break
    return names, files


def with_places(text: str, names: dict[str, str]) -> str:
    """The text of a task's file with other names of its documents."""
    for node in sorted(nodes_of(yaml.compose(text)), key=lambda node: -node.start_mark.index):
        if node.value in names:
            name = json.dumps(names[node.value])
            text = text[: node.start_mark.index] + name + text[node.end_mark.index :]
    return text


def nodes_of(node: Any, is_place: bool = False) -> Iterator[yaml.ScalarNode]:
    """The scalars of a YAML document that may name documents."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from nodes_of(value, is_place or key.value in PLACES)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from nodes_of(value, is_place)
    elif is_place and node is not None:
        yield node
