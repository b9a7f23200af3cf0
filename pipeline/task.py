"""The task of params.yaml, and the prompts that the stage `prompts` makes of its documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gistgate.core.architecture import context_of
from gistgate.core.files import read_json_lines
from gistgate.core.request import eos_ids
from pipeline.pair.pair import Pair, PairSource, load_config
from pipeline.params import Params
from pipeline.paths import TASKS, prompts_of

if TYPE_CHECKING:
    from gistgate.lm_eval.task import HarnessTask
    from gistgate.tasks.task import TaskSpec


def load_task(params: Params) -> HarnessTask:
    """The task of params.yaml, prompted as its block `prompting` says."""
    from gistgate.lm_eval import task  # costs seconds, and not every stage has a task

    return task.load_task(task_spec(params), TASKS)


def task_spec(params: Params) -> TaskSpec:
    """What params.yaml says about the task."""
    from gistgate.tasks.task import Prompting, TaskSpec

    return TaskSpec(
        params.task,
        params.task_metric,
        params.task_data,
        Prompting(**vars(params.prompting)),
        params.decoding.max_new_tokens,
        params.allow_code,
    )


def task_parts(params: Params) -> list[Any]:
    """What verdicts depend on besides code, for a fingerprint: the task's settings, its files and
    its documents.
    """
    data = [Path(params.task_data)] if params.task_data else []
    return [params.task, params.task_metric, TASKS, *data]


def context_length(source: PairSource) -> int:
    """Tokens that all models of the pair can read."""
    from lm_eval.defaults import DEFAULT_MAX_LENGTH

    configs = [load_config(model).get_text_config() for model in source.given.roles.values()]
    return min(context_of(config) or DEFAULT_MAX_LENGTH for config in configs)


def read_prompts(split: str) -> list[dict[str, Any]]:
    """The prompts of a split as the stage `prompts` wrote them."""
    return read_json_lines(prompts_of(split))


def request_of(prompts: Sequence[dict[str, Any]], pair: Pair) -> dict[str, Any]:
    """What all prompts of a split have in common, as arguments of `Decoder.generate`."""
    return {
        "max_new_tokens": prompts[0]["max_new_tokens"],
        "stops": prompts[0]["stops"],
        "eos_ids": eos_ids(pair.target, pair.tokenizer),
    }


def seeds_of(
    params: Params,
    prompts: Sequence[Any],
    first: int = 0,
) -> list[int]:
    """One seed for each prompt of a split from its place `first` on."""
    start = params.seed * 1_000_003 + first
    return list(range(start, start + len(prompts)))
