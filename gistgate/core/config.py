"""One SQLite file that keeps what was expensive to get, the moment it has come."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gistgate.core.utils import UserError


@contextmanager
def opened(path: Path, lost: str) -> Iterator[sqlite3.Connection]:
    """The open file; its folder is made.

    Args:
        path: the file.
        lost: what happens once a damaged file is removed, as the end of a sentence.

    Raises:
        UserError: it cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=60)) as base:
            yield base
    except sqlite3.OperationalError as error:  # no room, no permission, or another process holds the file
        raise UserError(
            f"{path} cannot be written ({error}). Make room there and run the command again: what has come is kept."
        ) from error
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} cannot be read ({error}). Remove it; {lost}.") from error
