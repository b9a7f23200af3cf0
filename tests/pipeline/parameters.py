"""Parameters of tests: those of params.yaml without its methods, with some values changed."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.params import Params, build

FILE = Path(__file__).parents[2] / "params.yaml"


@cache
def text_of_file() -> str:
    return FILE.read_text()


def content(**changes: Any) -> dict[str, Any]:
    """The content of params.yaml with these changes: values, and of blocks the keys that change."""
    values = {**yaml.safe_load(text_of_file()), "methods": {}}
    values["prompts"]["draw"] = 1
    return merged(values, changes)


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries with the changes taken in; what had no keys is replaced."""
    result = dict(values)
    for key, change in changes.items():
        before = values.get(key)
        if isinstance(before, dict) and isinstance(change, dict) and before:
            change = merged(before, change)
        result[key] = change
    return result


def parameters(**changes: Any) -> Params:
    """The parameters with these changes."""
    return build(Params, content(**changes))


def block(name: str, /, **changes: Any) -> Any:
    """One block of the parameters, with some of its keys changed."""
    return getattr(parameters(**{name: changes}), name)
