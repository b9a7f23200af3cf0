"""The task that params.yaml names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.integrations.lm_eval import task as tasks
from gistgate.integrations.lm_eval.prompting import Prompting
from gistgate.integrations.lm_eval.task import Task, TaskSpec
from pipeline.common.paths import TASKS
from pipeline.params import Params


def load_task(params: Params) -> Task:
    """The task of params.yaml, prompted as its block `prompting` says.

    Raises:
        UserError: there is no such task, it cannot be loaded, it does not generate text or it has no training split.
    """
    return tasks.load_task(task_spec(params))


def task_parts(params: Params) -> list[Any]:
    """What verdicts depend on besides code, for a fingerprint: the task's settings, its files and its documents."""
    data = [Path(params.task_data)] if params.task_data else []
    return [params.task, params.task_metric, TASKS, *data]


def task_spec(params: Params) -> TaskSpec:
    """What params.yaml says about the task."""
    asked = params.prompting
    prompting = Prompting(asked.num_fewshot, asked.chat_template, asked.system)
    longest = params.decoding.max_new_tokens
    return TaskSpec(params.task, params.task_metric, params.task_data, prompting, longest, params.allow_code)
