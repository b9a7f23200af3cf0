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
from time import monotonic

CHILD = Path(__file__).with_name("child.py")
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""The whole environment: one order of sets, so that equal programs get equal verdicts, and no threads of numpy."""
LOOK = 0.2
"""Seconds between two looks at what a program has written."""
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
    """Largest file, and largest sum of all files, in megabytes; the sum is looked at every `LOOK` seconds."""


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
            found = told(process, secret + b"\n" + program.encode(errors="replace"), Path(folder), limits)
        finally:
            end(process)
    return found == secret + b"\n"


def told(process: subprocess.Popen[bytes], given: bytes | None, folder: Path, limits: Limits) -> bytes:
    """What the process says until it ends; nothing where it takes too long or fills its folder."""
    last = monotonic() + PATIENCE * limits.seconds
    while True:
        try:
            found, _ = process.communicate(given, LOOK)
            return found if size_of(folder) <= limits.file_mb << 20 else b""
        except subprocess.TimeoutExpired:
            given = None  # it has been handed over, or will be
            if monotonic() > last or size_of(folder) > limits.file_mb << 20:
                return b""


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder that a process may be changing."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += (Path(place) / name).lstat().st_size
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
