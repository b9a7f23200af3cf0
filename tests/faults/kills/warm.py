"""The process of `pipeline.common.warm_server` with DVC imported, whose commands listen for the moment to strike.

python -m tests.faults.kills.warm SOCKET
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.common.warm_server import LIBRARIES, Command, Server, import_libraries
from tests.faults.kills.strike import Strike

DVC = ("dvc.cli", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run")


@contextlib.contextmanager
def armed(command: Command) -> Iterator[None]:
    """Take the order that the environment holds; SIGUSR1 shows where a command hangs."""
    faulthandler.register(signal.SIGUSR1, file=2)
    if "group" in command:
        os.environ["FAULT_GROUP"] = str(command["group"])
    Strike.arm(" ".join(command["words"]))
    try:
        yield
    finally:
        Strike.finish()


if __name__ == "__main__":
    import_libraries([*LIBRARIES, *DVC])
    server = Server(Path(sys.argv[1]), armed)
    server.has_imported = True
    server.serve(sys.stdin.fileno())
