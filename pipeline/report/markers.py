"""Parts of a page that a command writes: what stands between two comments, which readers of the page do not see."""

from __future__ import annotations

from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import read_text, write_text


def begin(name: str) -> str:
    """The comment in front of a part."""
    return f"<!-- {name}: begin (written by `make publish`) -->"


def end(name: str) -> str:
    """The comment behind it."""
    return f"<!-- {name}: end -->"


def renew(page: Path, name: str, content: str) -> None:
    """Write `content` between the comments of a page.

    Raises:
        UserError: the page lost its comments.
    """
    write_text(page, replaced(read_text(page), name, content))


def replaced(text: str, name: str, content: str) -> str:
    """The text with `content` between its comments."""
    before, after = split(text, name)
    return f"{before}{begin(name)}\n{content}\n{end(name)}{after}"


def part(text: str, name: str) -> str:
    """What stands between the comments."""
    before, after = split(text, name)
    return text[len(before) + len(begin(name)) : len(text) - len(after) - len(end(name))].strip()


def split(text: str, name: str) -> tuple[str, str]:
    """The text in front of the first comment and behind the second.

    Raises:
        UserError: a comment is missing, stands twice, or they are in the wrong order.
    """
    first, second = begin(name), end(name)
    if text.count(first) != 1 or text.count(second) != 1 or text.index(first) > text.index(second):
        raise UserError(f"The page lacks the lines '{first}' and '{second}'. Put them back where '{name}' belongs.")
    return text[: text.index(first)], text[text.index(second) + len(second) :]
