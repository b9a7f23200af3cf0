"""Independent pieces of a stage side by side: small matrices occupy one processor core, so a CPU takes several pieces.

Every worker prepares once (loads the pair, the task) and then takes piece after piece. With one worker, or one piece,
everything happens in this process with all its threads. Processes of torchrun share the pieces, and each has workers
of its own. Workers end with the process that started them, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from gistgate.errors import UserError
from pipeline.common import ranks
from pipeline.common.progress import bar

Item = TypeVar("Item")

Prepare = Callable[[Any], Callable[[Any], Any]]
"""A module-level function: settings -> what to do with one piece."""

_work: Callable[[Any], Any] | None = None
"""What this worker process does with a piece."""
_failed: UserError | None = None
"""Why it could not prepare; an exception in the preparation itself would look like a killed process."""


def side_by_side(prepare: Prepare, settings: Any, pieces: Sequence[Item], workers: int, title: str, unit: str) -> None:
    """`prepare(settings)(piece)` for every piece, with a progress bar; the first error stops the rest.

    Where torchrun has started several processes, each takes its share, and all return when the last piece is done.

    Raises:
        UserError: a worker was killed from outside (usually for memory), or its preparation or a piece raised one.
    """
    _side_by_side(prepare, settings, ranks.own(pieces), workers, title, unit)
    ranks.wait()


def _side_by_side(prepare: Prepare, settings: Any, pieces: Sequence[Item], workers: int, title: str, unit: str) -> None:
    workers = min(workers, len(pieces))
    if workers <= 1:
        ranks.take_device()
        work = prepare(settings) if pieces else None
        for piece in bar(pieces, title=title, unit=unit):
            assert work is not None
            work(piece)
        return
    context = multiprocessing.get_context(_start_method())
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(prepare, settings)) as pool:
        try:
            futures = [pool.submit(_one, piece) for piece in pieces]
            for future in bar(as_completed(futures), title=title, unit=unit, total=len(futures)):
                future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "A worker process was ended from outside, most likely for want of memory. "
                "Set decoding.workers to 1 in params.yaml and start again; finished pieces are kept."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _start_method() -> str:
    """A copy of this process has its imports, some six seconds of processor time; a GPU or torchrun forbids copying."""
    import torch

    may_copy = sys.platform == "linux" and not torch.cuda.is_available() and ranks.size() == 1
    return "fork" if may_copy else "spawn"


def _start(prepare: Prepare, settings: Any) -> None:
    import torch

    global _work, _failed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A copied process must not use the threads that its parent had, so one thread is also what makes copies safe.
    torch.set_num_threads(1)
    ranks.take_device()
    try:
        _work = prepare(settings)
    except UserError as error:
        _failed = error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _one(piece: Any) -> Any:
    if _failed is not None:
        raise _failed
    assert _work is not None
    return _work(piece)
