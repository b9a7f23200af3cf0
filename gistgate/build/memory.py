"""Whether memory suffices for models, said before they are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gistgate.errors import UserError

GROUP = Path("/sys/fs/cgroup")
"""Where Linux says how much memory a container may take."""


class Size(NamedTuple):
    """Bytes of a model's weights."""

    loaded: int
    """As long as the model is there."""
    peak: int
    """While it is loaded; a GGUF file is unpacked beside the model."""


def check_memory(models: Mapping[str, Size | None], device: Any = "cpu") -> None:
    """Refuse models that memory cannot hold when they are loaded one after another, in this order.

    Args:
        models: weights by the name of the model; None where nothing is known, which refuses nothing.
        device: where the weights go.

    Raises:
        UserError: they need more than is free.
    """
    known = {name: size for name, size in models.items() if size}
    needed, free = most_at_once(known.values()), free_memory(torch.device(device))
    if free is None or needed <= free:
        return
    parts = [f"{name} {size.loaded / 1e9:.1f} GB" for name, size in known.items()]
    passing = needed - sum(size.loaded for size in known.values())
    if passing:
        parts.append(f"{passing / 1e9:.1f} GB more while a GGUF file is unpacked")
    raise UserError(
        f"The weights need {needed / 1e9:.1f} GB ({', '.join(parts)}), and {free / 1e9:.1f} GB are free on {device}. "
        "Close other programs, choose a smaller model or a dtype of half the size, or use a machine with more memory."
    )


def most_at_once(sizes: Iterable[Size]) -> int:
    """The most bytes that exist at a time while models are loaded one after another."""
    loaded = most = 0
    for size in sizes:
        most = max(most, loaded + size.peak)
        loaded += size.loaded
    return most


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where the system does not say."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # PyTorch's own, free again
        return int(torch.cuda.mem_get_info(device)[0]) + int(kept)
    lines = read(Path("/proc/meminfo")).splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    limit, used = (read(GROUP / file).strip() for file in ("memory.max", "memory.current"))
    if limit.isdecimal() and used.isdecimal():
        found.append(int(limit) - max(0, int(used) - reclaimable()))
    return min(found, default=None)


def reclaimable() -> int:
    """Bytes of files that the container has read and that the kernel gives back as soon as memory is wanted."""
    entries = (line.split() for line in read(GROUP / "memory.stat").splitlines())
    return next((int(entry[1]) for entry in entries if entry[0] == "inactive_file"), 0)


def read(file: Path) -> str:
    """The text of a file of the system; empty where there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""
