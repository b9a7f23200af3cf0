"""The hook that refuses audit events of Python: starting something, reaching out, and changes outside a folder.

It sees what Python's own functions do, not what a library in C does, and a program that wants to can take it apart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

REFUSED = (
    "os.fork", "os.posix_spawn", "os.system", "os.exec", "os.kill", "os.spawn", "subprocess.", "socket.", "pty.",
    "ctypes.", "signal.pthread_kill", "resource.prlimit", "fcntl.fcntl", "fcntl.ioctl",
)  # fmt: skip
"""Beginnings of Python's audit events that no program may cause."""
CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.chflags", "os.utime", "os.setxattr", "shutil.", "tempfile.",
)  # fmt: skip
"""Beginnings of audit events whose arguments are paths that are about to change."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Hook:
    """Refuses audit events of Python by raising."""

    def __init__(self, folder: str) -> None:
        """`folder` is the only place where files may change."""
        self.folder = folder + os.sep

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            self.check_open(*arguments)
        elif event == "sqlite3.connect":
            self.check_database(os.fsdecode(arguments[0]))
        elif event.startswith(CHANGES):
            self.check_change(event, arguments)

    def check_open(self, path: Any, mode: str | None, flags: Any) -> None:
        """Refuse to write outside, and descriptors of folders.

        Only `os.open`, which has no mode, makes those. Paths relative to one are not told apart from other paths here.
        """
        if isinstance(flags, int) and flags & WRITING:
            self.check(path)
        if mode is None and not isinstance(path, int) and Path(os.fsdecode(path)).is_dir():
            raise PermissionError(f"{path!r} is a folder, and folders are not opened here")

    def check_database(self, name: str) -> None:
        """Refuse a database outside the folder, and one that is named by an address."""
        if name.startswith("file:"):
            raise PermissionError("Databases are opened by their paths here")
        if name != ":memory:":
            self.check(name)

    def check_change(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse changes outside, and those by a descriptor, which a file that is only read has as well."""
        if isinstance(arguments[0], int) and event != "os.truncate":
            raise PermissionError(f"{event} is not allowed by a descriptor here")
        for argument in arguments:
            self.check(argument)

    def check(self, path: Any) -> None:
        """Refuse a path outside the folder."""
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not (place + os.sep).startswith(self.folder) and place != os.devnull:
                raise PermissionError(f"{place} lies outside the working directory")
