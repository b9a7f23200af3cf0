"""Modules that need an extra of the package."""

from __future__ import annotations

import importlib
from typing import Any

from gistgate.errors import UserError


def module_of(name: str, extra: str) -> Any:
    """The module called `name`, whose libraries come with `extra`.

    Raises:
        UserError: a library that it needs is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"This command needs '{error.name}', which is not installed. Install it with "
            f"`pip install '.[{extra}]'` in the clone of GistGate."
        ) from error
