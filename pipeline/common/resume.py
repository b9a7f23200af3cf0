"""Finished pieces of unfinished work, kept outside DVC's outputs (which DVC empties before every start).

A folder is named by a fingerprint of everything that the pieces depend on: settings, upstream files and the source of
the modules that produce them. Whatever changes, the old pieces are simply not found.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gistgate.errors import UserError
from gistgate.files import fingerprint, load_tensors, save_tensors, write_atomic, write_json
from pipeline.common.closure import ROOT, closure
from pipeline.common.paths import SCRATCH

__all__ = ["SCRATCH", "Shards", "fingerprint", "num_shards", "read_shards", "sources"]
SUMMARY = "summary.json"


def sources(*modules: str) -> list[Path]:
    """Every source file that these modules may run, by dotted name: their import closure."""
    return [ROOT / path for path in closure(*modules)]


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
