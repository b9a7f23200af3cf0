"""The process of one program: `gistgate.integrations.programs.runner` starts this file and nothing imports it.

    python child.py SECONDS MEMORY_MB FILE_MB    standard input: a secret in the first line, then the program

The secret goes back over standard output if and only if the program runs to its end; leaving early says nothing. Three
walls stand around the program: resource limits of the system; on Linux a filter of system calls that refuses processes,
threads, sockets and signals; and a hook in Python that refuses the same, and every change of a file outside the working
directory. The hook can be circumvented by somebody who wants to; the filter and the limits cannot.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from types import ModuleType
from typing import Any

CALLS = {
    "x86_64": (0xC000003E, (41, 53, 56, 57, 58, 62, 200, 234, 435)),
    "aarch64": (0xC00000B7, (129, 130, 131, 198, 199, 220, 435)),
}
"""By processor: its number for the filter, and the refused calls: socket, socketpair, clone, fork, vfork, kill, tkill,
tgkill, clone3."""
REFUSED = (
    "os.fork", "os.posix_spawn", "os.system", "os.exec", "os.kill", "os.spawn", "subprocess.", "socket.", "pty.",
    "ctypes.", "signal.pthread_kill",
)  # fmt: skip
"""Beginnings of Python's audit events that no program may cause."""
CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "shutil.", "tempfile.",
)  # fmt: skip
"""Beginnings of audit events whose arguments are paths that are about to change."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    seconds, memory, size = map(int, sys.argv[1:])
    secret, program = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.argv = ["program"]
    limit(seconds, memory << 20, size << 20)
    refuse_calls()
    sys.addaudithook(Hook(os.path.realpath(".")))
    module = sys.modules["__main__"] = ModuleType("__main__")
    try:
        exec(compile(program, "program", "exec"), module.__dict__)
    except BaseException:  # whatever it is, sys.exit included, the program has not run to its end
        os._exit(1)
    os.write(channel, secret)
    os._exit(0)


def limit(seconds: int, memory: int, size: int) -> None:
    """Limit processor time, memory, processes and sizes of files, as far as the system knows them."""
    limits = {"CPU": seconds, "AS": memory, "FSIZE": size, "NPROC": 0, "NOFILE": 64, "CORE": 0}
    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            try:
                resource.setrlimit(kind, (most, most))
            except (OSError, ValueError):
                continue  # macOS refuses a limit of memory


def refuse_calls() -> bool:
    """Let the kernel refuse the calls of CALLS from now on; False where it cannot."""
    if platform.machine() not in CALLS or sys.platform != "linux":
        return False
    processor, calls = CALLS[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06  # instructions of a Berkeley packet filter
    refused, allowed = 0x00050001, 0x7FFF0000  # the error EPERM; go on
    steps = [(load, 0, 0, 4), (equal, 1, 0, processor), (answer, 0, 0, refused), (load, 0, 0, 0)]
    steps += [(equal, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    steps += [(answer, 0, 0, allowed), (answer, 0, 0, refused)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_ = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(buffer))
    call = ctypes.CDLL(None).prctl
    no_new_privileges, seccomp, mode = 38, 22, 2
    return bool(call(no_new_privileges, 1, 0, 0, 0) == 0 and call(seccomp, mode, filter_, 0, 0) == 0)


class Hook:
    """Refuses audit events of Python by raising."""

    def __init__(self, folder: str) -> None:
        """`folder` is the only place where files may change."""
        self.folder = folder + os.sep

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.check(arguments[0])
        elif event.startswith(CHANGES):
            for argument in arguments:
                self.check(argument)

    def check(self, path: Any) -> None:
        """Refuse a path outside the folder."""
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not place.startswith(self.folder) and place != os.devnull:
                raise PermissionError(f"{place} lies outside the working directory")


if __name__ == "__main__":
    main()
