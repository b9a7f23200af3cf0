"""Whether a program that a model wrote runs to its end: in a process of its own, with limits, and never in this one.

The process has an empty temporary folder, none of our environment variables, and limits of processor time, memory and
file size. It may start neither processes nor threads, open no network connection, reach no other process and change no
file outside its folder; docs/real.md says what holds this on which system. It can read the files that its user can
read. For programs of somebody who means harm use a container or a machine of its own.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

CHILD = Path(__file__).with_name("child.py")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""The whole environment: one order of sets, so that equal programs get equal verdicts, and no threads of numpy."""
PATIENCE = 6
"""Wall-clock time until a process is ended, in multiples of its processor time: programs may sleep."""


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: int = 5
    """Processor time."""
    memory_mb: int = 1024
    """Address space, the interpreter's own included, in megabytes."""
    file_mb: int = 10
    """Largest file, in megabytes."""


USUAL = Limits()


@lru_cache(maxsize=20_000)
def runs(program: str, limits: Limits = USUAL) -> bool:
    """Whether the program runs to its end without an exception; equal programs run once."""
    secret = secrets.token_hex(16).encode()
    numbers = map(str, (limits.seconds, limits.memory_mb, limits.file_mb))
    command = [sys.executable, "-s", "-P", "-B", "-X", "utf8", str(CHILD), *numbers]
    with TemporaryDirectory(prefix="gistgate-program-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            found, _ = process.communicate(secret + b"\n" + program.encode(errors="replace"), PATIENCE * limits.seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            end(process)
    return found == secret + b"\n"


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
