"""The reader of GGUF files; a module of its own, because exported folders carry none."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gistgate.build.memory import Size
from gistgate.errors import UserError, first_line, is_out_of_memory


def check_reader() -> None:
    """Raise UserError unless the package that reads GGUF files is installed."""
    if find_spec("gguf") is None:
        raise UserError(
            "GGUF files are read by the package `gguf`. Run `pip install '.[gguf]'` in the clone of GistGate."
        )


def gguf_size(file: Path, dtype: Any) -> Size:
    """What a GGUF file needs: while it is unpacked, all of it in float32 and the model beside it.

    Raises:
        UserError: the file is empty, cut off or something else.
    """
    numbers = count(file)
    loaded = numbers * (torch.float32 if dtype == "auto" else dtype).itemsize
    return Size(loaded, loaded + numbers * torch.float32.itemsize)


def count(file: Path) -> int:
    """Numbers in all tensors of a GGUF file."""
    from gguf import GGUFReader

    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except Exception as error:  # damaged files fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"The GGUF file {file} could not be read ({first_line(error)}). It is empty, cut off or something else; "
            "download it or write it again."
        ) from error
