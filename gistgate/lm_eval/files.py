"""The files of a task, and what they say before any document is loaded."""

from __future__ import annotations

import difflib
import logging
import re
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from gistgate.core.utils import UserError
from gistgate.tasks.task import TASKS

log = logging.getLogger(__name__)

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
NO_TEXT = "The task '{}' is not an ordinary `generate_until` task. Choose one that is."
NO_TRAINING = "The task '{}' has no training split. Choose one that names a `training_split`."
INCLUDE = re.compile(r"^include:\s*['\"]?([^\s'\"]+)", re.MULTILINE)
NAME = re.compile(r"^task:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
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
    if file.suffix in (".yaml", ".yml"):
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
