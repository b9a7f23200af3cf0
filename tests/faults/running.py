"""Run a command line in this process on a damaged copy of the project, and say what is wrong with its answer."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gistgate.cli import main as cli
from pipeline.common import entry
from tests.faults.cases import Case

MEMORY = 256
"""MiB that a case may add to the largest memory of the process."""
SECONDS = 60
"""A reader that waits for longer waits for ever."""


def complaint(case: Case, world: Path, folder: Path) -> str | None:
    """What is wrong with how a case is answered; None where it is one clear sentence and nothing is written."""
    shutil.copytree(world, folder)
    (folder / "data/tasks/sums.yaml").write_text(
        (world / "data/tasks/sums.yaml").read_text().replace(str(world), str(folder))
    )
    case.damage(folder / case.file)
    before, memory = listing(folder), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, out, err = run(case.command, folder)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024
    said = [line for line in err.splitlines() if line.strip() and "Loading weights" not in line]
    if status == 0:
        return f"accepted: {out!r} {err!r}"
    if status != 1 or "Traceback" in err or not said:
        return f"status {status}: {err[-2000:]}"
    sentence = said[-1]
    if not sentence.endswith((".", "?")) or not 4 < len(sentence.split()) < 200 or not sentence.isprintable():
        return f"no clear sentence: {sentence!r}"
    if case.words not in sentence:
        return f"another sentence: {sentence!r}"
    if out:
        return f"it said {out!r} first"
    if listing(folder) != before:
        return "files changed"
    return f"it took {grown} MiB" if grown > MEMORY else None


def listing(folder: Path) -> dict[str, str]:
    """Every path with a hash of what is there; holes and devices are not read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        small = path.is_file() and path.stat().st_size < 1 << 24
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if small else ""
    return found


def run(command: str, folder: Path) -> tuple[Any, str, str]:
    """Exit status, standard output and standard error of a command in a folder."""
    first, *rest = command.split()
    out, err = io.StringIO(), io.StringIO()
    with inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            if first == "stage":
                sys.argv = [rest[0]]
                entry.run(importlib.import_module(f"pipeline.stages.{rest[0]}").main)
            else:
                sys.argv = ["gistgate", first, *rest]
                cli.main()
            status: Any = 0
        except SystemExit as left:
            status = left.code or 0
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
    return status, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, for a limited time, and leave the process as it was."""
    here, arguments, formatter = Path.cwd(), sys.argv, warnings.formatwarning

    def late(*_: Any) -> None:
        raise TimeoutError(f"nothing happened for {SECONDS} seconds")

    previous = signal.signal(signal.SIGALRM, late)
    os.chdir(folder)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        os.chdir(here)
        sys.argv, warnings.formatwarning = arguments, formatter
