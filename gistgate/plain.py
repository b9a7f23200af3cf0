"""What a file has to be before anybody reads it: a regular file of bounded size, and strict JSON.

A link to a device, a pipe or a folder is refused, and so is a file that is larger than its kind can sensibly be.
"""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

from gistgate.errors import UserError

MOST_TEXT = 1 << 30
"""Largest text file that is read, in bytes."""
MOST_JSON = 1 << 26
"""Largest file with one JSON value, in bytes."""
CACHES = re.compile(r"/blobs/[0-9a-f]{40,64}$|/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")
"""Where links of the hub's cache and of DVC's cache lead to."""


def check_regular(path: str | Path, most: int | None = None) -> None:
    """Refuse what is no regular file, links followed, and what is larger than `most` bytes.

    A missing file passes, because its reader has a sentence of its own.

    Raises:
        UserError: which of the two it is.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be opened ({error}). Restore it or write it again.") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file. Restore it or write it again.")
    if most is not None and found.st_size > most:
        raise UserError(
            f"{path} has {found.st_size} bytes, and a file of its kind has at most {most}. Restore it or write it "
            "again."
        )


def inside(folder: str | Path, name: str) -> Path:
    """The file `name` of a folder that somebody else may have written.

    Raises:
        UserError: the name leads out of the folder, or the file is a link to somewhere else than a download cache.
    """
    folder = Path(folder)
    path = folder / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise UserError(f"{folder} names the file {name!r}, which leads out of the folder. Restore the folder.")
    try:
        leads_out = path.is_symlink() and path.resolve().parent != folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} cannot be opened ({error}). Restore the folder.") from error
    if leads_out and not CACHES.search(path.resolve().as_posix()):
        raise UserError(f"{path} is a link that leads out of its folder. Put the file itself there.")
    return path


def strict_json(text: str) -> Any:
    """The value of a JSON text, as the standard has it: no NaN, no key twice, no half characters.

    Raises:
        ValueError: what is wrong with the text.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be encoded
    return value


def refuse_constant(name: str) -> Any:
    """Refuse NaN and the infinities, which Python's reader takes and JSON does not know."""
    raise ValueError(f"{name} is no number")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The entries of an object; the same key twice is an error, because readers differ about which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key '{next(name for name in names if names.count(name) > 1)}' stands twice")
    return found


def printable(text: str) -> str:
    """A text that cannot steer a terminal: control characters and half characters are written as escapes."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
