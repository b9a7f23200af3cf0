"""Stages that need not import: every command of a DVC run is a fork of one process that has imported the libraries.

A stage takes seven seconds of processor time to import torch, transformers and lm-eval, and a run has twenty stages.
`warm()` starts a process that has them (`pipeline.common.warm_server`) and puts a small `python` in front of PATH,
which hands `python -m MODULE ...` over to it and ends as the fork ends. Modules of the project are imported by every
fork anew, so that a run sees the code that DVC compares. Without that process the small `python` is the ordinary one.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SWITCH = "GISTGATE_WARM"
"""Variable of the environment; `off` lets every stage start as a process of its own."""
PATIENCE = 60.0
"""Seconds that the process may take to begin, and to end."""

CLIENT = """#!{python} -ISE
# Hands `python -m MODULE ...` over to a process that has imported the libraries; see pipeline/common/warm.py.
import json, os, signal, socket, sys

asked = socket.socket(socket.AF_UNIX)
try:
    if sys.argv[1:2] != ["-m"]:
        raise OSError
    asked.connect("{socket}")
    place = {{"folder": os.getcwd(), "environment": dict(os.environ), "group": os.getpgrp()}}
    socket.send_fds(asked, [json.dumps({{"words": sys.argv[2:], **place}}).encode() + b"\\n"], [0, 1, 2])
    told = asked.makefile()
    process = int(told.readline())
except (OSError, ValueError):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
status = int(told.readline() or -signal.SIGKILL)
sys.exit(status) if status >= 0 else os.kill(os.getpid(), -status)
"""


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """Let the commands of this process be forks of a warm one, where the system can do that and has room for it."""
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux" and os.environ.get(SWITCH) != "off":
            with contextlib.suppress(OSError):
                stack.enter_context(started())
        yield


@contextlib.contextmanager
def started() -> Iterator[None]:
    """The warm process at work, and the small `python` in front of PATH."""
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="gistgate-") as folder:
        socket = Path(folder) / "socket"
        client = write_client(Path(folder) / "bin", socket)
        # Its standard input is the sign of life: the process ends when nobody holds the other end any more.
        command = [sys.executable, "-m", "pipeline.common.warm_server", str(socket)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
            wait_for(socket, process)
            os.environ["PATH"] = f"{client.parent}{os.pathsep}{path}"
            try:
                yield
            finally:
                os.environ["PATH"] = path
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()


def wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process listens; without it the small `python` is the ordinary one."""
    end = time.monotonic() + PATIENCE
    while not socket.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def write_client(folder: Path, socket: Path) -> Path:
    """Write the small `python` that hands commands over to the process at `socket`."""
    folder.mkdir(exist_ok=True)
    client = folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, socket=socket))
    client.chmod(0o700)
    return client
