"""Find an lm-eval task by name, in data/tasks first, and load it from the hub or from a folder of JSON lines.

Together with `prompting` and `judging` beside it the only place that touches private names of lm-eval.
"""

from __future__ import annotations

import difflib
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

from gistgate.errors import UserError, first_line
from gistgate.integrations.lm_eval.unit_tests import check_allowed, own_code_eval

log = logging.getLogger(__name__)

TASKS = Path("data/tasks")
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def find_task(name: str, data: str | None = None, folder: Path = TASKS, allow_code: bool = False) -> ConfigurableTask:
    """The task `name` of `folder`, or else of lm-eval's own collection.

    Args:
        name: the task.
        data: a folder that replaces where its documents come from.
        folder: where own tasks are.
        allow_code: whether programs that the model writes may run, if that is how the task judges.

    Raises:
        UserError: no task of that name, a group of tasks, documents that cannot be loaded, a task that does not
            generate text, or one that runs programs without being allowed to.
    """
    manager, entry = entry_of(name, folder)
    check_allowed(name, bool((entry.cfg or {}).get("unsafe_code")), allow_code)
    overrides = local_data(data, entry.cfg or {}) if data else None
    with own_code_eval() if allow_code else nullcontext():
        task = build(manager, name, overrides)
    check_allowed(name, getattr(task, "UNSAFE_CODE", False), allow_code)  # an included file may have said so
    if not isinstance(task, ConfigurableTask) or task.OUTPUT_TYPE != "generate_until":
        raise UserError(f"The task '{name}' is not an ordinary `generate_until` task. Choose one that is.")
    return task


def entry_of(name: str, folder: Path | None) -> tuple[TaskManager, Any]:
    """The index of tasks, and what it knows of the task `name` before any document is loaded.

    Raises:
        UserError: no task of that name, a group of tasks, or a task that does not generate text.
    """
    manager = TaskManager(include_path=folder and str(folder), include_defaults=folder is None)
    if folder is not None and name not in manager.all_tasks:
        log.info("The task '%s' is not in %s; scanning lm-eval's own tasks.", name, folder)
        manager = TaskManager(include_path=str(folder))
    entry = manager.task_index.get(name)
    if entry is None:
        place = f"{folder} or in lm-eval" if folder else "lm-eval"
        raise UserError(f"There is no task '{name}' in {place}. {hint(name, manager.all_subtasks)}")
    if name not in manager.all_subtasks:
        raise UserError(f"'{name}' is a group of tasks. Name one task of it in params.yaml.")
    output_type = (entry.cfg or {}).get("output_type", "generate_until")
    if output_type != "generate_until":
        raise UserError(
            f"The task '{name}' has the output type '{output_type}', which decodes nothing. "
            "Choose a task with `output_type: generate_until`."
        )
    return manager, entry


def check_name(name: str) -> None:
    """Refuse a task of lm-eval's own that the pipeline could not use, without loading its documents.

    Raises:
        UserError: as `entry_of`.
    """
    entry_of(name, None)


def hint(name: str, known: list[str]) -> str:
    """A sentence that helps after a mistyped name."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Write {name}.yaml or choose another task."


def build(manager: TaskManager, name: str, overrides: dict[str, Any] | None) -> Any:
    """The task object; loading its documents is part of building it."""
    index = manager.task_index
    try:
        return manager._factory.build(index[name], overrides=overrides, registry=index)
    except Exception as error:  # the many ways in which a hub, a file or a YAML can fail
        raise UserError(
            f"The task '{name}' could not be loaded ({type(error).__name__}: {first_line(error)}). Check its YAML and "
            "its data; without the hub, set `task_data` in params.yaml to a folder with a .jsonl file for each split."
        ) from error


def local_data(folder: str, config: dict[str, Any]) -> dict[str, Any]:
    """Settings that make the task read `<folder>/<split>.jsonl` (or .json) instead of the hub.

    Raises:
        UserError: a split that the task names has no file there.
    """
    splits = sorted({config[key] for key in SPLITS if config.get(key)})
    files = {split: split_file(Path(folder), split) for split in splits}
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}


def split_file(folder: Path, split: str) -> str:
    """The file of one split."""
    for path in (folder / f"{split}.jsonl", folder / f"{split}.json"):
        if path.is_file():
            return str(path)
    raise UserError(f"{folder / split}.jsonl is missing, and the task wants a split '{split}'. Check `task_data`.")
