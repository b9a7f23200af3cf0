"""The reader of GGUF files; a module of its own, because exported folders carry none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gistgate.errors import UserError


def check_reader() -> None:
    """Raise UserError unless the package that reads GGUF files is installed."""
    if find_spec("gguf") is None:
        raise UserError("GGUF files are read by the package `gguf`. Run `pip install 'gistgate[gguf]'`.")


def gguf_bytes(file: Path, dtype: Any) -> int:
    """Bytes while a GGUF file is unpacked: all of it in float32, and the model beside it."""
    from gguf import GGUFReader

    numbers = sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    return numbers * (torch.float32.itemsize + (torch.float32 if dtype == "auto" else dtype).itemsize)
