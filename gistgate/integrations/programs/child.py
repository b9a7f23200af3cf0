"""The process of one program: `gistgate.integrations.programs.runner` starts this file and nothing imports it.

    python child.py SECONDS MEMORY_MB FILE_MB    standard input: a secret in the first line, then the program

The secret goes back over standard output if and only if the program runs to its end; leaving early says nothing. Four
walls stand around the program: resource limits of the system; on Linux a filter of system calls that refuses processes,
threads, sockets and signals (`calls.py`); there, too, a rule that keeps changes of files in the working directory
(`landlock.py`); and a hook in Python that refuses the same (`hook.py`). The hook can be circumvented by somebody who
wants to; what the kernel holds cannot.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import ModuleType

# The interpreter runs without this file's folder on its path, so that programs cannot import what lies beside it.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gistgate.integrations.programs.calls import refuse_calls
from gistgate.integrations.programs.hook import Hook
from gistgate.integrations.programs.landlock import keep_changes_in

del sys.path[0]


def main() -> None:
    seconds, memory, size = map(int, sys.argv[1:])
    secret, program = sys.stdin.buffer.readline(), sys.stdin.buffer.read()
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.argv = ["program"]
    limit(seconds, memory << 20, size << 20)
    confine(os.path.realpath("."))
    # Not `__main__`: what a program does when it is started by hand is no part of the answer.
    module = sys.modules["program"] = ModuleType("program")
    try:
        exec(compile(program, "program", "exec", dont_inherit=True), module.__dict__)
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


def confine(folder: str) -> None:
    """Put up the walls: `folder` is where files may change."""
    refuse_calls()
    keep_changes_in(folder)
    os.supports_dir_fd.clear()  # the hook opens no folder, so that shutil has to remove trees by their paths
    sys.addaudithook(Hook(folder))


if __name__ == "__main__":
    main()
