"""The files that an lm-eval task consists of: its YAML, what that includes, and the Python beside it."""

from __future__ import annotations

import re
from pathlib import Path

INCLUDE = re.compile(r"^include:\s*['\"]?([^\s'\"]+)", re.MULTILINE)
NAME = re.compile(r"^task:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
FUNCTION = re.compile(r"!function\s+['\"]?([\w./-]+)\.\w+")
"""A function by its module, which lm-eval looks for beside the YAML first."""


def files_of(task: Path) -> list[Path]:
    """The file of a task, those that it includes and those with its functions; empty where there is none.

    Modules of installed packages do not count.
    """
    return list(dict.fromkeys(walked(task)))


def name_in(text: str) -> str | None:
    """The name that a task's YAML gives it; None where an included file does."""
    found = NAME.search(text)
    return found[1] if found else None


def walked(task: Path) -> list[Path]:
    """As `files_of`; a file that two others name stands there twice."""
    if not task.is_file():
        return []
    text = task.read_text(encoding="utf-8")
    modules = [task.parent / f"{name.replace('.', '/')}.py" for name in FUNCTION.findall(text)]
    included = [path for name in INCLUDE.findall(text) for path in walked(task.parent / name)]
    return [task, *included, *(path for path in modules if path.is_file())]
