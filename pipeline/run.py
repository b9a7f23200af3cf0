"""How a stage runs: one sentence on failure, pieces over workers and torchrun ranks, shards that
survive a kill.
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import typer

from gistgate import __version__
from gistgate.core.files import fingerprint, save_tensors, write_atomic, write_json
from gistgate.core.progress import bar
from gistgate.core.utils import INTERRUPTED, UserError, is_out_of_memory
from pipeline.paths import SCRATCH

RANK = int(os.environ.get("RANK", 0))
"""Number of this process among those that torchrun has started; 0 joins what all have made."""
RANKS = int(os.environ.get("WORLD_SIZE", 1))


def run(main: Callable[..., object]) -> None:
    """Call `main` with the command line's arguments; what a person can mend becomes one sentence
    and exit status 1.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except UserError as error:
        sys.exit(" ".join(str(error).split()))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        sys.exit(
            "Memory ran out. Set decoding.workers to 1 in params.yaml or lower a batch_size, and"
            " start again."
        )
    except SystemExit as left:
        if left.code == INTERRUPTED:
            print("Interrupted. Start again to go on; finished shards are kept.", file=sys.stderr)
        raise


def wait() -> None:
    """Wait until every process that torchrun has started has come here."""
    if RANKS > 1:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timedelta(days=7))
        dist.barrier()


def take_device() -> None:
    """Let every process of a machine compute on a GPU of its own, where there is one for each."""
    place = int(os.environ.get("LOCAL_RANK", 0))
    if RANKS > 1 and place < torch.cuda.device_count():
        torch.cuda.set_device(place)


Work = Callable[[Any], Any]  # what is done with one piece
Prepare = Callable[[Any], Work]  # a function of a module: settings -> work

_prepare: Prepare
_settings: Any
_work: Work | None = None


def side_by_side(
    prepare: Prepare,
    settings: Any,
    pieces: Sequence[Any],
    workers: int,
    title: str,
    unit: str,
) -> list[Any]:
    """`prepare(settings)(piece)` for every piece of this rank, in so many processes that each
    prepare once.
    """
    wait()  # every rank lists what is missing before one of them writes
    pieces = pieces[RANK::RANKS]
    workers = min(workers, len(pieces))
    if workers <= 1:
        take_device()
        results = [*map(prepare(settings), pieces)] if pieces else []
    else:
        # A copy of this process has its imports; a GPU or torchrun forbids copying.
        copies = sys.platform == "linux" and not torch.cuda.is_available() and RANKS == 1
        context = multiprocessing.get_context("fork" if copies else "spawn")
        with ProcessPoolExecutor(workers, context, _start, (prepare, settings)) as pool:
            progress = bar(pool.map(_work_on, pieces), title=title, unit=unit, total=len(pieces))
            try:
                results = list(progress)
            except BrokenProcessPool as error:
                raise UserError(
                    "A worker process was ended from outside, most likely for want of memory. Set"
                    " decoding.workers to 1 in params.yaml and start again; finished pieces are"
                    " kept."
                ) from error
    wait()
    return results


def _start(prepare: Prepare, settings: Any) -> None:
    global _prepare, _settings
    _prepare = prepare
    _settings = settings
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # a copied process must not use the threads that its parent had
    take_device()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def _work_on(piece: Any) -> Any:
    global _work
    if _work is None:  # not in `_start`, where an exception would look like a killed process
        _work = _prepare(_settings)
    return _work(piece)


def revision() -> str:
    """The commit of the checkout, marked where files differ from it; "unknown" outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:  # a machine without Git
        return "unknown"
    return answer.stdout.strip() or "unknown"


class Shards:
    """Numbered safetensors files, published together. Finished shards wait in .scratch, because DVC
    empties outputs.
    """

    def __init__(self, name: str, *parts: Any) -> None:
        code = (__version__, revision().removesuffix("-dirty"))
        self.folder = SCRATCH / f"{name}-{fingerprint(*code, *parts)}"

    def path(self, index: int) -> Path:
        """The place of one shard."""
        return self.folder / f"rows-{index:05d}.safetensors"

    def fill(
        self,
        count: int,
        prepare: Prepare,
        settings: Any,
        workers: int,
        title: str,
        metadata: dict[str, str],
    ) -> bool:
        """Make the shards that no earlier start has made: `prepare(settings)` is asked for the
        tensors of each by its number. True in the process that publishes them.
        """
        missing = [index for index in range(count) if not self.path(index).exists()]
        job = (self, prepare, settings, metadata)
        side_by_side(_making, job, missing, workers, title, "shard")
        return RANK == 0

    def publish(
        self,
        count: int,
        output: Path,
        summary: dict[str, Any] | None = None,
    ) -> None:
        """Move the finished whole into `output`, with a summary.json beside it; the scratch folder
        goes.
        """

        def write(part: Path) -> None:
            part.mkdir(parents=True)
            for index in range(count):
                shutil.copy2(self.path(index), part)
            if summary is not None:
                write_json(part / "summary.json", summary)

        write_atomic(output, write)
        shutil.rmtree(self.folder, ignore_errors=True)


def _making(job: tuple[Shards, Prepare, Any, dict[str, str]]) -> Work:
    shards, prepare, settings, metadata = job
    produce = prepare(settings)
    return lambda index: save_tensors(shards.path(index), produce(index), metadata)


def shard_files(folder: Path) -> list[Path]:
    """The shards of a published folder, in order."""
    files = sorted(folder.glob("rows-*.safetensors"))
    if not files:
        raise UserError(f"{folder} holds no shards. Run the stage that writes it (`dvc repro`).")
    return files
