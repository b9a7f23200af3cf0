"""Options of a command from a YAML file, which those on the command line override."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gistgate.core.utils import UserError, nearest

PLACES = ("file", "out", "ledger", "junit", "task_data", "recompute", "judge_prompt")
"""Parameters that name a file or folder."""
MAYBE_PLACES = ("strict", "loose", "gate")
"""Parameters that name a file, a folder or something else."""


def parameters_of(context: typer.Context) -> dict[str, Any]:
    """The parameter of each option of a command by its name without dashes."""
    parameters = {}
    for parameter in context.command.params:
        if parameter.param_type_name == "option":
            for option in parameter.opts:
                parameters[option.removeprefix("--")] = parameter
    return parameters


def read_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Let a file's entries replace the defaults of a command's options, or refuse it as other wrong
    options are.
    """
    if path is None:
        return None
    try:
        context.default_map = dict(entries_of(path, context))
    except UserError as error:
        raise typer.BadParameter(str(error)) from error
    return path


def entries_of(path: Path, context: typer.Context) -> Iterator[tuple[str, Any]]:
    """The parameters and values in a file, whose relative paths are relative to it; UserError where
    it has an entry that no option has as its name.
    """
    import yaml  # commands without such a file need it not

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        cause = " ".join(str(error).split())
        raise UserError(f"{path} is no YAML: {cause[:200]}. Correct that.") from error
    if not isinstance(entries, dict):
        raise UserError(f"{path} holds no options. Write lines such as `budget: 0.02`.")
    parameters = parameters_of(context)
    for name, value in entries.items():
        option = str(name).replace("_", "-")
        if context.token_normalize_func:
            option = context.token_normalize_func(option)
        if option not in parameters:
            raise UserError(f"{path} has an unknown option '{name}'. {nearest(option, parameters)}")
        parameter = parameters[option]
        if value is not None:
            value = value_of(parameter.name, value, path.parent)
            is_single = parameter.multiple and not isinstance(value, list)
            yield parameter.name, [value] if is_single else value


def value_of(name: str, value: Any, folder: Path) -> Any:
    """A value as the option takes it."""
    if isinstance(value, dict):
        return json.dumps(value)
    if not isinstance(value, str) or value == "-":
        return value
    place = folder / value
    if name in PLACES or (name in MAYBE_PLACES and place.exists()):
        return str(place)
    return value
