"""Linux keeps a program from changing what lies outside its folder (Landlock), and nothing can undo that.

Since 5.13 the kernel refuses to create, write, move and remove files there; since 6.2 to truncate them; since 6.10 to
control devices; since 6.12 to signal processes outside. Modes and times of files it does not guard.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE, ADD, RESTRICT = 444, 445, 446
"""System calls, with the same numbers on every processor."""
WRITE, TRUNCATE, CONTROL = 1 << 1, 1 << 14, 1 << 15
"""Rights that a file can have on its own: to be written, truncated, and controlled where it is a device."""
RIGHTS = ((1, WRITE | 0x1FF0), (2, 1 << 13), (3, TRUNCATE), (5, CONTROL))
"""Rights by the version that knows them first: writing, removing and making files of every kind; moving; the others."""
SCOPES = ((6, 0b11),)
"""Sockets without a file, and signals."""


def keep_changes_in(folder: str) -> bool:
    """Let the kernel refuse changes outside `folder` from now on; False where it cannot."""
    if sys.platform != "linux":
        return False
    version = call(CREATE, None, 0, 1)
    handled, scoped = (known(table, version) for table in (RIGHTS, SCOPES))
    rules = call(CREATE, struct.pack("QQQ", handled, 0, scoped), 24, 0)
    if rules < 0:  # no Landlock, which has no rights either
        return False
    allow(rules, folder, handled)
    allow(rules, os.devnull, handled & (WRITE | TRUNCATE | CONTROL))
    no_new_privileges = 38
    ctypes.CDLL(None).prctl(no_new_privileges, 1, 0, 0, 0)
    restricted = call(RESTRICT, rules, 0) == 0
    os.close(rules)
    return restricted


def known(table: tuple[tuple[int, int], ...], version: int) -> int:
    """The bits that this version knows."""
    return sum(bits for since, bits in table if since <= version)


def allow(rules: int, path: str, rights: int) -> None:
    """Allow these rights for a file, or for a folder and all in it."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    call(ADD, rules, 1, struct.pack("=Qi", rights, place), 0)
    os.close(place)


def call(*arguments: int | bytes | None) -> int:
    """A system call by its number; -1 where it fails."""
    return int(ctypes.CDLL(None).syscall(*arguments))
