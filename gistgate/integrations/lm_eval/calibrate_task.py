"""The task on which a certificate is made: asked and judged as the user says, else as the gate was trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.prompting import Prompting
from gistgate.integrations.lm_eval.task import TaskSpec
from gistgate.typed import dataclass_from


class Asked(Protocol):
    """The options that say which task it is, how it is asked and what judges it; None leaves a choice to the gate."""

    @property
    def task(self) -> str: ...
    @property
    def task_data(self) -> str | None: ...
    @property
    def allow_code(self) -> bool: ...
    @property
    def chat(self) -> bool | None: ...
    @property
    def system(self) -> str | None: ...
    @property
    def num_fewshot(self) -> int | None: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def max_new_tokens(self) -> int | None: ...


def spec_of(options: Asked, gate: Gate | None) -> TaskSpec:
    """What `load_task` has to load. A gate's metric and limit count on the task that it was trained on.

    Raises:
        UserError: the gate does not say how its prompts were built, or a system text has no chat to stand in.
    """
    said = {"metric": options.metric, "max_new_tokens": options.max_new_tokens}
    taught = {} if gate is None or gate.config.labels.get("task") != options.task else gate.config.labels
    known: dict[str, Any] = {name: taught.get(name) if value is None else value for name, value in said.items()}
    return TaskSpec(
        options.task,
        data=options.task_data,
        prompting=prompting_of(options, gate),
        allow_code=options.allow_code,
        **{name: value for name, value in known.items() if value is not None},
    )


def prompting_of(options: Asked, gate: Gate | None) -> Prompting:
    """How documents become prompts.

    Raises:
        UserError: see `spec_of`.
    """
    try:
        prompting = dataclass_from(Prompting, gate.config.prompting) if gate is not None else Prompting(None)
    except ValueError as error:
        raise UserError(f"The gate's config.json has no valid prompting: {error}. Train the gate again.") from error
    if options.chat is not None:
        prompting = replace(prompting, chat_template=options.chat, system=prompting.system if options.chat else None)
    if options.num_fewshot is not None:
        prompting = replace(prompting, num_fewshot=options.num_fewshot)
    if options.system is not None:
        prompting = replace(prompting, system=options.system or None)
    if options.system and not prompting.chat_template:
        raise UserError("A system text needs a chat, and these prompts are none. Add --chat, or leave --system out.")
    return prompting
