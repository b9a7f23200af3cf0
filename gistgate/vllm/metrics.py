"""Counters of the workers as Prometheus metrics of the server; `python -m gistgate.vllm.metrics URL` asks for them.

The workers are other processes than the one that answers `/metrics`. Each writes its totals into a folder that the
first process names in the environment, once a second where something has changed; the server reads them when asked.
"""

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
from threading import Thread
from time import sleep
from typing import Any
from urllib.request import urlopen

from gistgate.core.utils import UserError, printable

FOLDER = "GISTGATE_METRICS"  # environment variable that names the folder
INTERVAL = 1.0  # seconds between two looks at the counters
TIMEOUT = 10.0  # seconds to wait for the server


def collect() -> None:
    """Name a folder in the process that the others descend from, and answer for it; the others change nothing."""
    if FOLDER in os.environ:
        return
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="gistgate-")
    atexit.register(rmtree, os.environ[FOLDER], ignore_errors=True)
    with suppress(ImportError):  # nobody asks for metrics then
        from prometheus_client import REGISTRY

        REGISTRY.register(Collector(Path(os.environ[FOLDER])))


def report(about: dict[str, str], totals: Callable[[], dict[str, float]] | None) -> None:
    """Let a worker write what it is, and go on writing its totals from a thread; None counts nothing."""
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    write(path, about, {} if totals is None else totals())
    if totals is not None:
        Thread(target=keep_writing, args=(path, about, totals), daemon=True).start()


def keep_writing(path: Path, about: dict[str, str], totals: Callable[[], dict[str, float]]) -> None:
    """Write the totals once a second, as long as the process lives."""
    while path.parent.exists():
        with suppress(OSError):  # a full disk may have room again at the next look
            write(path, about, totals())
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
        """`gistgate_active` with one series per kind of worker, and the sums of all counters."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["rule", "setting", "runner", "source"]
        active = GaugeMetricFamily("gistgate_active", "Workers in which the plug-in runs.", labels=labels)
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
            yield CounterMetricFamily(f"gistgate_{name}", f"Counter '{name}' over all requests.", value=value)

    def describe(self) -> list[Any]:
        return []  # the names are known once workers have written


def check(url: str, strict: bool | None = None) -> dict[str, str]:
    """What the workers of a server say about themselves; `strict` demands that nothing (or something) lossy runs."""
    try:
        with urlopen(f"{url.rstrip('/').removesuffix('/v1')}/metrics", timeout=TIMEOUT) as answer:
            text = answer.read().decode()
    except (OSError, ValueError, HTTPException) as error:
        said = f"The server at {url} gave no metrics ({error}). Check the address and that it runs."
        raise UserError(said) from error
    return read(text, url, strict)


def read(text: str, url: str, strict: bool | None = None) -> dict[str, str]:
    """The labels of `gistgate_active` in a page of metrics."""
    found = re.search(r"^gistgate_active\{(.*)\} [1-9]", text, re.MULTILINE)
    if found is None:
        raise UserError(
            f"The gistgate plug-in does not run in the server at {url}: look for 'gistgate' in the server's log, and "
            'check that --additional-config names "gistgate" and that VLLM_PLUGINS, where set, does too.'
        )
    about = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
    if strict is not None and strict != (about["rule"] == "strict"):
        wanted = "strict" if strict else "a gate"
        raise UserError(f"The server at {url} runs the rule '{about['rule']}', but {wanted} was expected.")
    return about


def main(arguments: list[str]) -> int:
    """Print the answer; 1 where the plug-in does not run, or with --strict something lossy does."""
    places = [value for value in arguments if value != "--strict"]
    if len(places) != 1:
        print("Usage: python -m gistgate.vllm.metrics URL [--strict]", file=sys.stderr)
        return 2
    try:
        about = check(places[0], True if "--strict" in arguments else None)
    except UserError as error:
        print(printable(str(error)), file=sys.stderr)
        return 1
    print(printable(" ".join(f"{name}={value}" for name, value in about.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
