"""What has to reach the disk before a new file takes its name: a loss of power then leaves the old or the new one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""What file systems answer that cannot flush a folder."""


def flush_all(path: Path) -> None:
    """Flush a file, or every file and folder of a folder, to the disk; a rename behind this moves whole contents."""
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in names:
                flush(Path(folder, name))
            flush_folder(Path(folder))
    else:
        flush(path)


def flush(path: Path) -> None:
    """Flush the content of one file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """Flush the names in a folder, where the file system can do so."""
    try:
        flush(path)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def make_folder(path: Path) -> None:
    """Create a folder and those above it, and flush the names of the new ones."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        flush_folder(one.parent)
