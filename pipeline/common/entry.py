"""How every stage begins and ends: typed arguments, one sentence on failure, and an exit status that DVC understands.

A stage's last two lines are `if __name__ == "__main__":` and `run(main)`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

from gistgate.errors import UserError, is_out_of_memory
from gistgate.plain import printable
from pipeline.common import forecast
from pipeline.common.paths import PARAMS
from pipeline.common.yaml_file import read_yaml

AGAIN = {
    True: "start again to go on; finished shards are kept",
    False: "start again; what was measured so far is not taken up",
}
"""What follows a start that did not end, where finished work is kept and where it is not."""
SMALLER = {
    True: "Set decoding.workers to 1 in params.yaml or, which begins the stage anew, lower decoding.batch_size or "
    "label.batch_size",
    False: "Take smaller sizes among the options (--help), or a smaller pair",
}
"""What needs less memory in either case."""


def run(main: Callable[..., object], kept: bool = True) -> None:
    """Call `main` with the command line's arguments, which its signature declares as Typer reads it.

    What a person can mend becomes one sentence on stderr and exit status 1 (130 after an interruption).

    Args:
        main: what is run.
        kept: whether another start goes on with what this one has finished; most benchmarks begin anew.
    """
    started, again = perf_counter(), AGAIN[kept]
    try:
        given = arguments(main)
        forecast.announce(pair_in_use())
        main(**given)
        forecast.note(perf_counter() - started)
    except UserError as error:
        leave(str(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        leave(f"The disk is full. Free some space and {again}.")
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        leave(f"Memory ran out. {SMALLER[kept]}, and {again}.")
    except KeyboardInterrupt:
        leave(f"Interrupted. {again[0].upper()}{again[1:]}.", status=130)


def pair_in_use() -> str | None:
    """The pair that params.yaml names; None where it cannot be read, which the stage says itself."""
    try:
        content = read_yaml(Path(os.environ.get("GISTGATE_PARAMS") or PARAMS))
    except UserError:
        return None
    return str(content.get("pair")) if isinstance(content, dict) else None


def arguments(main: Callable[..., object]) -> dict[str, Any]:
    """The arguments on the command line by the names of `main`; after `--help` the process ends.

    Raises:
        UserError: they do not fit the signature.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @wraps(main)
    def given(**values: Any) -> dict[str, Any]:
        return values

    app.command()(given)
    try:
        found: Any = app(standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own errors have it; their class is no public name of Typer
            raise
        raise UserError(f"{error.format_message()} See --help.") from error
    if not isinstance(found, dict):
        raise SystemExit(found)
    return found


def leave(sentence: str, status: int = 1) -> None:
    """End the process with one sentence."""
    print(printable(" ".join(sentence.split())), file=sys.stderr)
    raise SystemExit(status)


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch."""
    import random

    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
