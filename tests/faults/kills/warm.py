"""A process that has imported what the stages need, and forks a copy of itself for every command.

A stage takes seconds of processor time to import torch, transformers and lm-eval; a fork has them at once. Modules of
the project are left out, so that every fork imports those of the copy that it runs in. A small `python` in front of
PATH hands the commands of DVC over; it ends as the fork ends, and the fork ends with it.

    python -m tests.faults.kills.warm SOCKET MODULES.json
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faults.kills.strike import Strike

LISTED = """
import importlib, json, sys, pkgutil, pipeline.stages
for found in pkgutil.iter_modules(pipeline.stages.__path__, "pipeline.stages."):
    importlib.import_module(found.name)
import dvc.cli, dvc.commands.repro, dvc.repo.reproduce, dvc.stage.run, mlflow.tracking, lm_eval.models.huggingface
own = {"gistgate", "pipeline", "tests", "__main__"}
json.dump([name for name in sys.modules if name.partition(".")[0] not in own], sys.stdout)
"""
"""Prints the names of foreign modules that the stages and DVC import."""


def serve(place: Path, modules: Iterable[str]) -> None:
    """Answer commands until this process is ended."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        place.unlink(missing_ok=True)
        listening.bind(str(place))
        listening.listen()
        while True:
            asked, _ = listening.accept()
            if not os.fork():
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                watch(asked)
            asked.close()


def watch(asked: socket.socket) -> None:
    """Run one command in a fork, tell its end, and end it where nobody waits for it any more."""
    text, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    command = json.loads(text)
    process = os.fork()
    if not process:
        asked.close()
        execute(command, files)
    asked.sendall(f"{process}\n".encode())
    waiting = os.pidfd_open(process)
    ready, _, _ = select.select([waiting, asked], [], [])
    if waiting not in ready:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(OSError):
        asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def execute(command: dict[str, Any], files: list[int]) -> None:
    """Become `python -m MODULE ARGUMENTS` in the command's folder and environment."""
    status: Any = 0
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, file=2)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(command["folder"])
        os.environ.clear()
        os.environ.update(command["environment"])
        module, *rest = command["words"]
        sys.argv, sys.path[0] = [module, *rest], command["folder"]
        Strike.arm(" ".join(command["words"]))
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        status = left.code or 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    Strike.finish()
    os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
