"""Independent pieces of a stage side by side: small matrices occupy one processor core, so a CPU takes several pieces.

Every worker prepares once (loads the pair, the task) and then takes piece after piece. With one worker, or one piece,
everything happens in this process with all its threads. Processes of torchrun share the pieces, and each has workers
of its own. Workers end with the process that started them, however that ends.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from functools import wraps
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import typer
from pytorch_lightning.plugins.io import TorchCheckpointIO
from torch import Tensor
from tqdm import tqdm

from gistgate.core.files import fingerprint, load_tensors, save_tensors, write_atomic, write_json
from gistgate.core.request import Usage
from gistgate.core.utils import UserError, is_out_of_memory, printable
from pipeline.paths import SCRATCH

# ---- How every stage begins and ends: typed arguments, one sentence on failure, and an exit status that DVC understands.


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
    again = AGAIN[kept]
    try:
        given = arguments(main)
        main(**given)
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


# ---- Several processes that `torchrun` has started share the pieces of a stage.


ItemRanks = TypeVar("Item")
Found = TypeVar("Found")

PATIENCE = timedelta(days=7)
"""Longest wait for the slowest process."""


def own(pieces: Sequence[ItemRanks]) -> Sequence[ItemRanks]:
    """The pieces of this process: every n-th of them, where n processes run.

    All processes have to name the same pieces. They wait for each other here, so that a list of missing files is made
    by all of them before one of them writes such a file.
    """
    wait()
    return pieces[rank() :: size()]


def before_others(work: Callable[[], Found]) -> Found:
    """Let the first process work before the others, which then find the files that it has written."""
    if is_first():
        found = work()
        wait()
        return found
    wait()
    return work()


def is_first() -> bool:
    """Whether this process joins what all of them have made."""
    return rank() == 0


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ.get("RANK", 0))


def size() -> int:
    """Number of processes."""
    return int(os.environ.get("WORLD_SIZE", 1))


def wait() -> None:
    """Wait until every process has come here."""
    if size() == 1:
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=PATIENCE)
    dist.barrier()


def take_device() -> None:
    """Let every process of a machine compute on a GPU of its own, where there is one for each."""
    import torch

    place = int(os.environ.get("LOCAL_RANK", 0))
    if size() > 1 and place < torch.cuda.device_count():
        torch.cuda.set_device(place)


# ---- Progress of long stages: a bar on a terminal; elsewhere, as in a log, a plain line at most once a minute.


EVERY = 60.0
"""Fewest seconds between two lines of a process, and in front of the first, so that short work says nothing."""


class Pace:
    """Says when a line is due. All bars of a process share one, because they lie in each other."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock` tells seconds."""
        self.clock = clock
        self._last: float | None = None

    def begin(self) -> float:
        """Begin the first minute, unless it has begun; returns the seconds at which the present one did."""
        if self._last is None:
            self._last = self.clock()
        return self._last

    def is_due(self) -> bool:
        """Whether a minute is over; the next one begins then."""
        now = self.clock()
        if now - self.begin() < EVERY:
            return False
        self._last = now
        return True


PACE = Pace()
"""That of this process."""


class Lines:
    """Stands in for a bar of tqdm where no terminal is: it prints a line of what is done when one is due."""

    def __init__(self, pieces: Iterable[Any] | None, title: str, unit: str, total: int | None) -> None:
        """Arguments are those of `bar`."""
        self.pieces, self.title, self.unit = pieces, title, unit
        self.total = len(pieces) if total is None and isinstance(pieces, Sized) else total
        self.n, self._note = 0, ""
        """Units that are done, and what else there is to say."""
        PACE.begin()

    def __iter__(self) -> Iterator[Any]:
        for piece in () if self.pieces is None else self.pieces:
            yield piece
            self.update(1)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Say this behind what is done, from the next line on."""
        self._note = text

    def update(self, number: int = 1) -> None:
        """Hear of units that were done."""
        self.n += number
        if PACE.is_due():
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Such as "label, strict: 312 of 781 rollouts"."""
        most = self.n if self.total is None else self.total
        done = f"{self.n}" if self.total is None else f"{self.n} of {self.total}"
        ending = "" if most == 1 else "es" if self.unit.endswith(("s", "x", "ch", "sh")) else "s"
        return f"{self.title}: {done} {self.unit}{ending}{self._note and f', {self._note}'}"


def bar(pieces: Iterable[Any] | None = None, *, title: str | None, unit: str, total: int | None = None) -> Any:
    """A progress bar around `pieces`, or one that the caller updates.

    Without a terminal it prints lines instead; without a title it is silent.
    """
    if title is not None and not sys.stderr.isatty():
        return Lines(pieces, title, unit, total)
    return tqdm(pieces, desc=title, unit=unit, total=total, disable=title is None)


def decoding(shown: Any, usage: Usage) -> Callable[[int], None]:
    """What hears of finished prompts: it moves the bar and shows the mean accepted length of what is decoded so far."""

    def finished(number: int) -> None:
        shown.set_postfix_str(f"tau {usage.mean_accepted_length:.2f}", refresh=False)
        shown.update(number)

    return finished


class Steps:
    """Hears of Lightning's steps and prints how many were taken. It goes into other processes, unlike a closure."""

    def __init__(self, title: str, total: int) -> None:
        """`total` is the most steps that the training takes."""
        self.lines = Lines(None, title, "step", total)

    def __call__(self, trainer: Any, *_step: object) -> None:
        """Count up to the trainer's batches, those of an earlier start among them.

        Its `global_step` counts every optimiser apart.
        """
        if trainer.is_global_zero:
            self.lines.update(trainer.fit_loop.epoch_loop.total_batch_idx + 1 - self.lines.n)


def lightning_bar(refresh_rate: int, title: str, total: int) -> list[Any]:
    """Callbacks with Lightning's bar, refreshed after so many steps; silent for 0.

    Without a terminal they print lines instead, for which `title` and `total`, the most steps, are given.
    """
    from pytorch_lightning.callbacks import LambdaCallback, TQDMProgressBar

    if not refresh_rate or sys.stdout.isatty():
        return [TQDMProgressBar(refresh_rate=refresh_rate)]
    silent = TQDMProgressBar(refresh_rate=0)  # Lightning adds a bar of its own where there is none
    return [silent, LambdaCallback(on_train_batch_end=Steps(title, total))]


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
    _side_by_side(prepare, settings, own(pieces), workers, title, unit)
    wait()


def _side_by_side(prepare: Prepare, settings: Any, pieces: Sequence[Item], workers: int, title: str, unit: str) -> None:
    workers = min(workers, len(pieces))
    if workers <= 1:
        take_device()
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

    may_copy = sys.platform == "linux" and not torch.cuda.is_available() and size() == 1
    return "fork" if may_copy else "spawn"


def _start(prepare: Prepare, settings: Any) -> None:
    import torch

    global _work, _failed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A copied process must not use the threads that its parent had, so one thread is also what makes copies safe.
    torch.set_num_threads(1)
    take_device()
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


# ---- Finished pieces of unfinished work, kept outside DVC's outputs (which DVC empties before every start).


SUMMARY = "summary.json"


class Shards:
    """Numbered safetensors files that are made one by one and published together."""

    def __init__(self, name: str, *parts: Any) -> None:
        self.folder = SCRATCH / f"{name}-{fingerprint(*parts)}"

    def path(self, index: int) -> Path:
        """The place of one shard."""
        return self.folder / f"rows-{index:05d}.safetensors"

    def make(self, index: int, produce: Callable[[], dict[str, Tensor]], metadata: dict[str, str]) -> None:
        """Produce a shard unless an earlier start already did."""
        if not self.path(index).exists():
            save_tensors(self.path(index), produce(), metadata)

    def missing(self, count: int) -> list[int]:
        """Shards that no earlier start has made."""
        return [index for index in range(count) if not self.path(index).exists()]

    def publish(self, count: int, output: Path, summary: dict[str, Any] | None = None) -> None:
        """Move the finished whole into `output`, with a summary.json beside it; the scratch folder goes."""

        def write(part: Path) -> None:
            copy_all([self.path(index) for index in range(count)], part)
            if summary is not None:
                write_json(part / SUMMARY, summary)

        write_atomic(output, write)
        shutil.rmtree(self.folder, ignore_errors=True)


def copy_all(files: Sequence[Path], folder: Path) -> None:
    """Copy files into a new folder."""
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy2(file, folder / file.name)


def num_shards(folder: Path) -> int:
    """Shards of a published folder.

    Raises:
        UserError: there are none.
    """
    count = len(list(folder.glob("rows-*.safetensors")))
    if not count:
        raise UserError(f"{folder} holds no shards. Run the stage that writes it (`dvc repro`).")
    return count


def read_shards(folder: Path) -> list[dict[str, Tensor]]:
    """All shards of a published folder, in order."""
    return [load_tensors(path) for path in sorted(folder.glob("rows-*.safetensors"))]


# ---- Checkpoints of a training that are whole or absent, so that a full disk or a kill never leaves a half one.


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place and renames it, where Lightning itself writes in place."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint.

        Raises:
            UserError: it cannot be written; the one before it stays.
        """
        write_atomic(path, lambda part: self.save_in_place(checkpoint, part, storage_options))

    def save_in_place(self, checkpoint: dict[str, Any], path: Path, storage_options: Any) -> None:
        """What Lightning does."""
        super().save_checkpoint(checkpoint, path, storage_options)
