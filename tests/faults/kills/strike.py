"""What happens inside a process that is to be disturbed: wait for the moment, write it down, strike.

The order comes in the environment variable FAULT_ORDER. Moments are events of Python's audit hooks: a file is opened, a
file is renamed, a database is connected. Without an order the events are counted, and the counts and the seconds are
appended to the file that FAULT_CENSUS names.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from tests.faults.kills.moments import MOMENTS, Moment

REMOUNT = 32
"""Linux's flag of `mount` that changes the options of a file system which is mounted."""


class Strike:
    """Counts the moments of this process, and strikes at the chosen one."""

    current: ClassVar[Strike | None] = None

    def __init__(self, name: str, order: dict[str, Any]) -> None:
        self.name, self.order, self.begin = name, order, monotonic()
        self.counts: dict[str, int] = {}
        self.is_next, self.is_done = False, False

    @classmethod
    def arm(cls, name: str) -> None:
        """Take the order of the environment, if it is meant for the process `name` (a module and its arguments)."""
        order = json.loads(os.environ.get("FAULT_ORDER", "{}"))
        if order and not name.startswith(order["process"]):
            return
        if group := order.get("memory_group"):
            (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
        cls.current = Strike(name, order)
        if order and order["moment"] == "at random":
            cls.current.later(order["delay"])
        else:
            sys.addaudithook(cls.current.hear)

    @classmethod
    def finish(cls) -> None:
        """Write down what was counted, where that is asked for."""
        file, found = os.environ.get("FAULT_CENSUS"), cls.current
        if file and found:
            found.is_done = True
            append(Path(file), {"process": found.name, "seconds": monotonic() - found.begin, "counts": found.counts})

    def hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Called by Python for every audited event."""
        if self.is_done:
            return
        if self.is_next:
            self.strike()
        elif event in HEARD:
            for moment in MOMENTS:
                if moment.fits(event, values):
                    self.count(moment, values)

    def count(self, moment: Moment, values: tuple[Any, ...]) -> None:
        """One more moment of this kind has come."""
        self.counts[moment.name] = self.counts.get(moment.name, 0) + 1
        if self.order and (self.order["moment"], self.order["count"]) == (moment.name, self.counts[moment.name]):
            if moment.when == "next":
                self.is_next = True
            elif self.order["delay"]:
                self.later(self.order["delay"])
            else:
                if moment.when == "torn":
                    tear(str(values[0]), self.order["share"])
                self.strike()

    def later(self, seconds: float) -> None:
        """Strike from another thread."""
        timer = threading.Timer(seconds, self.strike)
        timer.daemon = True
        timer.start()

    def strike(self) -> None:
        """Write down that the moment has come, and do what was ordered."""
        if self.is_done:
            return
        self.is_done = True
        append(Path(self.order["record"]), {"struck": self.name, "seconds": round(monotonic() - self.begin, 3)})
        WAYS[self.order["way"]](self.order)


HEARD = {moment.event for moment in MOMENTS}


def append(file: Path, value: dict[str, Any]) -> None:
    """Add a JSON line in one call of the system."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, (json.dumps(value) + "\n").encode())
    os.close(handle)


def tear(name: str, share: float) -> None:
    """Leave the first part of a file, as a writer does that is killed half-way."""
    content = Path(name).read_bytes() if Path(name).exists() else b""
    Path(name).write_bytes(content[: int(share * len(content))])


def kill_stage(order: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_all(order: dict[str, Any]) -> None:
    """Kill DVC first, so that it cannot answer to the end of its stage."""
    os.killpg(int(os.environ.get("FAULT_GROUP") or os.getpgrp()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(order: dict[str, Any]) -> None:
    """What a terminal does at Ctrl-C: every process of the foreground group is told."""
    os.killpg(int(os.environ.get("FAULT_GROUP") or os.getpgrp()), signal.SIGINT)


def fill_disk(order: dict[str, Any]) -> None:
    """Leave little room on the small file system; where none could be mounted, let no file grow."""
    if not order["mount"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["room"], order["room"]))
        return
    found = os.statvfs(order["mount"])
    size = (found.f_blocks - found.f_bfree) * found.f_frsize + order["room"]
    options = f"size={size}".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"none", order["mount"].encode(), None, REMOUNT, options):
        raise OSError(ctypes.get_errno(), "the small file system could not be made smaller")


def limit_memory(order: dict[str, Any]) -> None:
    """Let the process have little more address space than it has, so that its next allocations fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + order["room"]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_group(order: dict[str, Any]) -> None:
    """Let the process' memory group have little more than it has, so that Linux kills the process."""
    group = Path(order["memory_group"])
    used = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(used + order["room"]))


WAYS = {
    "kill the stage": kill_stage,
    "kill DVC": kill_stage,
    "kill DVC and the stage": kill_all,
    "interrupt": interrupt,
    "full disk": fill_disk,
    "limit of address space": limit_memory,
    "limit of memory": limit_group,
}
