"""Counters of the workers as Prometheus metrics of the server; `python -m gistgate.vllm.metrics
URL` asks for them. Each worker, a process of its own, writes its totals into a folder that the
first process names in the environment; the server reads them when asked."""

import atexit
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from shutil import rmtree
from threading import Thread, get_ident
from time import sleep
from typing import Any
from urllib.request import urlopen

import typer

from gistgate.core.utils import UserError, printable

FOLDER = "GISTGATE_METRICS"
"""Environment variable that names the folder."""
INTERVAL = 1.0
"""Seconds between two looks at the counters."""
TIMEOUT = 10.0
"""Seconds to wait for the server."""


def collect() -> None:
    """Name a folder in the process that the others descend from, and answer for it; the others
    change nothing.
    """
    if FOLDER in os.environ:
        return
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="gistgate-")
    atexit.register(rmtree, os.environ[FOLDER], ignore_errors=True)
    from prometheus_client import REGISTRY

    REGISTRY.register(Collector(Path(os.environ[FOLDER])))


def report(about: dict[str, str], totals: Callable[[], dict[str, float]] | None) -> None:
    """Let a worker write what it is, and go on writing its totals from a thread; None counts
    nothing.
    """
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"

    def write() -> None:
        report = {"about": about, "totals": {} if totals is None else totals()}
        # A process that serves several rules in turn has several writers.
        part = path.with_suffix(f".{get_ident()}")
        part.write_text(json.dumps(report))
        part.replace(path)  # in one step, so that nobody reads half of it

    def keep_writing() -> None:
        while path.parent.exists():
            with suppress(OSError):  # a full disk may have room again at the next look
                write()
            sleep(INTERVAL)

    write()
    if totals is not None:
        Thread(target=keep_writing, daemon=True).start()


class Collector:
    """Reads what the workers wrote whenever Prometheus asks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def collect(self) -> Iterator[Any]:
        """`gistgate_active` with one series per kind of worker, and the sums of all counters."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["rule", "setting", "runner", "source"]
        title = "Workers in which the plug-in runs."
        active = GaugeMetricFamily("gistgate_active", title, labels=labels)
        kinds: Counter[tuple[str, ...]] = Counter()
        sums: Counter[str] = Counter()
        for path in sorted(self.folder.glob("*.json")):
            worker = json.loads(path.read_text())
            kinds[tuple(worker["about"][name] for name in labels)] += 1
            sums.update(worker["totals"])
        for kind, number in kinds.items():
            active.add_metric(list(kind), number)
        yield active
        for name, value in sums.items():
            title = f"Counter '{name}' over all requests."
            yield CounterMetricFamily(f"gistgate_{name}", title, value=value)

    def describe(self) -> list[Any]:
        """Nothing: the names are known once workers have written."""
        return []


def check(url: str, strict: bool = False) -> dict[str, str]:
    """What the workers of a server say about themselves; `strict` demands that nothing lossy
    runs.
    """
    page = f"{url.rstrip('/').removesuffix('/v1')}/metrics"
    try:
        with urlopen(page, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"The server at {url} gave no metrics ({error}). Check the address and that it runs."
        ) from error
    labels = re.search(r"^gistgate_active\{(.*)\} [1-9]", text, re.MULTILINE)
    if labels is None:
        raise UserError(
            f"The gistgate plug-in does not run in the server at {url}: look for 'gistgate' in the"
            ' server\'s log, and check that --additional-config names "gistgate" and that'
            " VLLM_PLUGINS, where set, does too."
        )
    about = dict(re.findall(r'(\w+)="([^"]*)"', labels[1]))
    rule = about["rule"]
    if strict and rule != "strict":
        raise UserError(f"The server at {url} runs the rule '{rule}', but strict was expected.")
    return about


def main(url: str, strict: bool = False) -> None:
    """Print what the workers of the server at URL say; exit with 1 if none runs, or with --strict a
    lossy one.
    """
    try:
        about = check(url, strict)
    except UserError as error:
        sys.exit(printable(str(error)))
    print(printable(" ".join(f"{name}={value}" for name, value in about.items())))


if __name__ == "__main__":
    typer.run(main)
