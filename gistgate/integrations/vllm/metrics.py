"""Counters of the workers as Prometheus metrics of the server.

The workers are other processes than the one that answers `/metrics`. Each writes its totals into a folder that the
first process names in the environment, once a second where something has changed; the server reads them when asked.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from threading import Thread
from time import sleep
from typing import Any

FOLDER = "GISTGATE_METRICS"
"""Environment variable that names the folder."""
INTERVAL = 1.0
"""Seconds between two looks at the counters."""


def collect() -> None:
    """Name a folder in the process that the others descend from, and answer for it; the others change nothing."""
    if FOLDER in os.environ:
        return
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="gistgate-")
    atexit.register(rmtree, os.environ[FOLDER], ignore_errors=True)
    try:
        from prometheus_client import REGISTRY
    except ImportError:  # nobody asks for metrics then
        return
    REGISTRY.register(Collector(Path(os.environ[FOLDER])))


def report(about: dict[str, str], totals: Callable[[], dict[str, float]] | None) -> None:
    """Let a worker write what it is, and go on writing its totals from a thread; None counts nothing."""
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    write(path, about, {} if totals is None else totals())
    if totals is not None:
        Thread(target=keep_writing, args=(path, about, totals), daemon=True).start()


def keep_writing(path: Path, about: dict[str, str], totals: Callable[[], dict[str, float]]) -> None:
    """Write the totals whenever they have changed, as long as the process lives."""
    last: dict[str, float] = {}
    while path.parent.exists():
        if (now := totals()) != last:
            with suppress(OSError):  # a full disk may have room again at the next look
                write(path, about, now)
                last = now
        sleep(INTERVAL)


def write(path: Path, about: dict[str, str], totals: dict[str, float]) -> None:
    """Replace the file in one step, so that nobody reads half of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"about": about, "totals": totals}))
    part.replace(path)


class Collector:
    """Reads what the workers wrote whenever Prometheus asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterator[Any]:
        """`gistgate_active` with one series per worker, and the sums of all counters."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        workers = [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]
        active = GaugeMetricFamily(
            "gistgate_active", "Workers in which the plug-in runs.", labels=["rule", "setting", "runner", "source"]
        )
        sums: dict[str, float] = {}
        kinds: dict[tuple[str, ...], int] = {}
        for worker in workers:
            about = worker["about"]
            kind: tuple[str, ...] = (about["rule"], about["setting"], about["runner"], about["source"])
            kinds[kind] = kinds.get(kind, 0) + 1
            for name, value in worker["totals"].items():
                sums[name] = sums.get(name, 0.0) + value
        for kind, number in kinds.items():
            active.add_metric(list(kind), number)
        yield active
        for name, value in sums.items():
            yield CounterMetricFamily(f"gistgate_{name}", f"Counter '{name}' over all requests.", value=value)

    def describe(self) -> list[Any]:
        """Nothing: the names are known once workers have written."""
        return []
