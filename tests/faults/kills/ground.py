"""Where disturbed commands run: a small file system of its own, a memory group, and the warm process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pipeline import smoke
from pipeline.common.warm import SWITCH, write_client

WIDE = "2g"
"""Size of the file system while nothing is to fail."""


class Ground:
    """Runs commands in a disturbed copy of the project."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rough = folder.resolve(), folder.resolve() / "rough"
        self.rough.mkdir(parents=True, exist_ok=True)
        self.mount = self.mounted()
        self.group = memory_group()

    def mounted(self) -> str:
        """The place of the small file system; empty where this user may mount none."""
        if not os.path.ismount(self.rough):
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={WIDE}", "tmpfs", str(self.rough)], capture_output=True
            )
            if done.returncode:
                return ""
        return str(self.rough)

    def clear(self) -> None:
        """Give the room and the memory back that a disturbance took."""
        if self.mount:
            subprocess.run(["mount", "-o", f"remount,size={WIDE}", self.mount], check=True)
        if self.group:
            Path(self.group, "memory.limit_in_bytes").write_text("-1")

    def renew(self) -> None:
        """Put a fresh copy of the project in place of the disturbed one."""
        for path in self.rough.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(self.folder / "fresh", self.rough, dirs_exist_ok=True)

    @contextlib.contextmanager
    def warm(self) -> Iterator[None]:
        """The warm process, and a `python` that hands commands over to it."""
        with tempfile.TemporaryDirectory() as place:
            self.socket = Path(place) / "socket"
            write_client(self.folder / "bin", self.socket)
            command = [sys.executable, "-m", "tests.faults.kills.warm", str(self.socket)]
            served = subprocess.Popen(command, stdin=subprocess.PIPE)
            try:
                while not self.socket.exists():
                    if served.poll() is not None:
                        raise RuntimeError("The warm process ended; its message stands above.")
                    sleep(0.2)
                yield
            finally:
                served.kill()
                served.wait()

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Variables of a command."""
        found = smoke.environment(self.rough)
        own = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{found['PATH']}",
            SWITCH: "off",
            "DVC_SITE_CACHE_DIR": str(self.rough / ".site"),
            "TMPDIR": str(self.rough / ".tmp"),
        }
        return {**found, **own, **extra}

    def ordered(self, order: dict[str, Any], note: Path) -> dict[str, str]:
        """The order to strike as variables of the environment."""
        group = {"memory_group": self.group} if order["way"] == "limit of memory" else {}
        return {"FAULT_ORDER": json.dumps({**order, **group, "record": str(note), "mount": self.mount})}

    def run(self, words: list[str], patience: float, **extra: str) -> tuple[int | None, str]:
        """Exit status (None where it had to be ended after `patience` seconds) and output of a command."""
        (self.rough / ".tmp").mkdir(exist_ok=True)
        log = self.folder / "log.txt"
        with log.open("w+") as out, socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.socket))
            command = {"words": words, "folder": str(self.rough), "environment": self.environment(extra)}
            socket.send_fds(asked, [json.dumps(command).encode() + b"\n"], [0, out.fileno(), out.fileno()])
            told = asked.makefile()
            process = int(told.readline())
            asked.settimeout(patience)
            try:
                status: int | None = int(told.readline() or -9)
            except TimeoutError:
                status = None
                self.ask_where()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
        self.wait_for_all()
        return status, log.read_text()

    def ask_where(self) -> None:
        """Let every process that hangs write into the log where it is."""
        for path in self.processes():
            with contextlib.suppress(OSError):
                if b"tests.faults.kills.warm" in (path / "cmdline").read_bytes():
                    os.kill(int(path.name), signal.SIGUSR1)
        sleep(1.0)
        shutil.copy(self.folder / "log.txt", self.folder / f"hung-{int(monotonic())}.txt")

    def processes(self) -> list[Path]:
        """The processes that work in the disturbed copy."""
        return [path for path in Path("/proc").iterdir() if path.name.isdigit() and self.is_ours(path)]

    def wait_for_all(self) -> None:
        """Wait until no process works in the disturbed copy any more; its end follows that of its client."""
        end = monotonic() + 60
        while left := self.processes():
            if monotonic() > end:
                for path in left:
                    os.kill(int(path.name), signal.SIGKILL)
            sleep(0.05)

    def is_ours(self, process: Path) -> bool:
        """Whether a process works in the disturbed copy."""
        try:
            return (process / "cwd").readlink().is_relative_to(self.rough)
        except OSError:
            return False


def memory_group() -> str:
    """A memory group of Linux (version 1) for the disturbed commands; empty where this user may make none."""
    top = Path("/sys/fs/cgroup/memory")
    if not (top / "memory.limit_in_bytes").exists():
        top = Path(tempfile.gettempdir()) / "gistgate-memory-groups"
        top.mkdir(exist_ok=True)
        if not os.path.ismount(top):
            subprocess.run(["mount", "-t", "cgroup", "-o", "memory", "none", str(top)], capture_output=True)
    group = top / "gistgate-kills"
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").read_text()
    except OSError:
        return ""
    return str(group)
