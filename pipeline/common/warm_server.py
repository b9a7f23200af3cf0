"""The process that forks the commands of a run; `pipeline.common.warm` starts it.

    python -m pipeline.common.warm_server SOCKET

It ends when its standard input is closed, after the commands that still run. A command whose client is gone is ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "torch._dynamo", "transformers.generation", "transformers.modeling_utils", "lm_eval.evaluator",
    "lm_eval.models.huggingface", "mlflow", "pytorch_lightning", "sklearn.isotonic", "sklearn.linear_model",
    "matplotlib.pyplot", "scipy.stats", "typer",
)  # fmt: skip
"""What the stages import besides the project's own modules. None of them starts a thread that a fork would miss."""

LARGEST = 1 << 20
"""Bytes of a command with its environment."""

Command = dict[str, Any]
"""words: a module and its arguments; folder; environment; group: the process group of the client."""

Around = Callable[[Command], AbstractContextManager[object]]
"""What surrounds a command in its fork."""


class Server:
    """Forks commands; the libraries are imported as soon as there is one."""

    def __init__(self, place: Path, around: Around = nullcontext) -> None:
        self.around = around
        self.has_imported = False
        self.waiting = selectors.DefaultSelector()
        self.running = 0
        self.listening = socket.socket(socket.AF_UNIX)
        unheard = place.with_suffix(".new")
        self.listening.bind(str(unheard))
        self.listening.listen()
        unheard.rename(place)
        self.waiting.register(self.listening, selectors.EVENT_READ, self.start)

    def serve(self, life: int) -> None:
        """Answer until the file `life` ends and every command has ended."""
        self.waiting.register(life, selectors.EVENT_READ, lambda: self.leave(life))
        self.open = True
        while self.open or self.running:
            for key, _ in self.waiting.select():
                if key.fd in self.waiting.get_map():  # what came before may have ended this one
                    key.data()

    def leave(self, life: int) -> None:
        """Take no further command."""
        if not os.read(life, 1):
            self.waiting.unregister(life)
            self.waiting.unregister(self.listening)
            self.listening.close()
            self.open = False

    def start(self) -> None:
        """Fork a command and tell its number."""
        asked, _ = self.listening.accept()
        text, files = receive(asked)
        if not text:
            asked.close()
            return
        if not self.has_imported:
            import_libraries()
            self.has_imported = True
        process = os.fork()
        if not process:
            asked.close()
            self.execute(json.loads(text), files)
        for file in files:
            os.close(file)
        ended = os.pidfd_open(process)
        self.running += 1
        self.waiting.register(ended, selectors.EVENT_READ, lambda: self.finish(process, ended, asked))
        self.waiting.register(asked, selectors.EVENT_READ, lambda: self.abandon(process, asked))
        with contextlib.suppress(OSError):
            asked.sendall(f"{process}\n".encode())

    def finish(self, process: int, ended: int, asked: socket.socket) -> None:
        """Tell how a command ended."""
        self.waiting.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(KeyError):
            self.waiting.unregister(asked)
        with contextlib.suppress(OSError):
            asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        asked.close()
        self.running -= 1

    def abandon(self, process: int, asked: socket.socket) -> None:
        """End a command that nobody waits for any more."""
        self.waiting.unregister(asked)
        os.kill(process, signal.SIGKILL)

    def execute(self, command: Command, files: list[int]) -> NoReturn:
        """Become `python -m MODULE ARGUMENTS` in the command's folder and environment, and exit as that does."""
        self.waiting.close()
        self.listening.close()
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(command["folder"])
        os.environ.clear()
        os.environ.update(command["environment"])
        words = command["words"]
        sys.argv, sys.path[0] = words, command["folder"]
        try:
            with self.around(command):
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)  # as shells say it
        sys.exit()


def receive(asked: socket.socket) -> tuple[bytes, list[int]]:
    """A command, which is one line, and its three files; nothing where the client left before."""
    text, files, _, _ = socket.recv_fds(asked, LARGEST, 3)
    while text and not text.endswith(b"\n"):
        more = asked.recv(LARGEST)
        text = text + more if more else b""
    return text, files


def import_libraries(names: Iterable[str] = LIBRARIES) -> None:
    """Import what is installed, and keep the garbage collector from touching, and so copying, its memory."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    own = {"gistgate", "pipeline"}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def main(place: str) -> None:
    Server(Path(place)).serve(sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1])
