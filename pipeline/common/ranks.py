"""Several processes that `torchrun` has started share the pieces of a stage.

    torchrun --nproc-per-node 8 -m pipeline.stages.collect strict

They share the folder of the run, so the pieces are joined through files, and nothing but barriers goes over the
network. A process without torchrun is the first and only one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

PATIENCE = timedelta(days=7)
"""Longest wait for the slowest process."""


def own(pieces: Sequence[Item]) -> Sequence[Item]:
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
