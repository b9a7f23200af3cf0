"""Large results on a processor: memory that one forward gives back is there for the next one.

A block of logits over 150,000 tokens takes up to hundreds of megabytes. The C library of Linux asks the kernel for
pieces of this size, returns them as soon as they are free, and asks again for the next one. The kernel fills every page
with zeros when it is first written, which can take longer than the operation itself (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import platform

import torch

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Numbers of mallopt's parameters in glibc's malloc.h."""
LARGEST = 2**31 - 1
"""The largest value that mallopt takes, in bytes."""
OWN_CHOICE = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user has decided otherwise."""


def keep_freed_memory(device: torch.device | str = "cpu") -> bool:
    """Let this process keep up to 2 GiB that it has freed, where models decode on a processor and glibc allocates.

    The process then looks larger from outside by as much. Called where models are loaded for a processor.

    Args:
        device: where the models lie.

    Returns:
        Whether anything was changed: not on another device or with another C library, and not where the user has set
        one of the environment variables `OWN_CHOICE`.
    """
    chosen = any(name in os.environ for name in OWN_CHOICE)
    if chosen or torch.device(device).type != "cpu" or platform.libc_ver()[0] != "glibc":
        return False
    return set_thresholds(LARGEST, LARGEST)


def set_thresholds(mmap: int, trim: int) -> bool:
    """Bytes from which a piece is asked from the kernel, and bytes of free memory from which it is returned."""
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP_THRESHOLD, mmap)) and bool(mallopt(TRIM_THRESHOLD, trim))
