"""What lm-eval is told about a run, checked before a model is loaded or an answer is paid for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager

from gistgate.core.files import check_folder
from gistgate.core.utils import UserError, nearest, replaced, shown

SAMPLES = """Write --samples '{"gsm8k": [0, 5]}', or name a JSON file with that."""


@contextmanager
def checking_settings() -> Iterator[None]:
    """While open, settings that lm-eval would ignore, or fail on after all answers, are refused."""
    resolve = EvaluatorConfig.process_tasks
    load = TaskManager.load
    loaded: list[Any] = []

    def load_once(manager: TaskManager, names: Any) -> Any:
        if not loaded:
            loaded.append(load(manager, names))
        return loaded[0]

    def resolve_and_check(config: EvaluatorConfig, *arguments: Any) -> TaskManager:
        check_numbers(config)
        if config.output_path:
            output = Path(config.output_path)
            check_folder(output.parent if output.suffix == ".json" else output, "--output_path")
        manager = resolve(config, *arguments)
        if config.samples is not None:
            check_samples(config.samples, manager.load(config.tasks)["tasks"])
        if config.num_fewshot:
            check_examples(config.num_fewshot, manager.load(config.tasks)["tasks"])
        return manager

    with (
        replaced(EvaluatorConfig, "process_tasks", resolve_and_check),
        replaced(TaskManager, "load", load_once),
    ):
        yield


def check_numbers(config: EvaluatorConfig) -> None:
    """Refuse (UserError) numbers of examples and documents that cannot be meant."""
    if config.num_fewshot is not None and config.num_fewshot < 0:
        raise UserError(
            f"--num_fewshot {config.num_fewshot} is below 0. Write the number of solved examples."
        )
    if config.limit is not None and config.limit <= 0:
        raise UserError(
            f"--limit {config.limit:g} leaves no document. Write a number above 0, or leave it out."
        )


def check_examples(number: int, tasks: dict[str, Any]) -> None:
    """Refuse (UserError) more solved examples than a task has documents for them."""
    for name, task in tasks.items():
        takes_examples = task.get_config("num_fewshot") != 0  # else lm-eval keeps to that
        if not takes_examples or not hasattr(task, "sampler"):
            continue
        size = len(task.sampler.fewshot_docs())
        if size < number:
            raise UserError(
                f"--num_fewshot {number} is above the {size} documents that '{name}' has for solved"
                " examples. Lower it."
            )


def check_samples(samples: Any, tasks: dict[str, Any]) -> None:
    """Refuse (UserError) a choice of documents that does not fit the tasks of a run."""
    if not isinstance(samples, dict):
        raise UserError(f"--samples is {shown(samples)}, which names no task. {SAMPLES}")
    for name, places in samples.items():
        if name not in tasks:
            raise UserError(
                f"--samples names '{name}', no task of this run. {nearest(name, tasks)}"
            )
        size = len(tasks[name].eval_docs)
        is_list = isinstance(places, list) and places
        if not is_list or not all(type(at) is int and 0 <= at < size for at in places):
            raise UserError(
                f"--samples has {shown(places)} for '{name}', whose documents are numbered from 0"
                f" to {size - 1}. {SAMPLES}"
            )
