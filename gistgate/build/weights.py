"""Where the weights of a model lie, how large they are, and how they are read: whole and finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file

from gistgate.build.memory import Size
from gistgate.errors import UserError
from gistgate.files import read_json

GGUF = ".gguf"


def placed(name: str, gguf: str | None = None) -> tuple[str, dict[str, str]]:
    """What `from_pretrained` is called with: the folder or hub id, and the GGUF file in it if there is one.

    A name that is itself a GGUF file stands for its folder and that file.
    """
    path = Path(name).expanduser()
    if gguf is None and path.suffix == GGUF and path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    return name, {} if gguf is None else {"gguf_file": gguf}


def check_gguf(name: str, place: Mapping[str, str]) -> None:
    """Refuse a GGUF file that cannot be read, before transformers tries.

    Raises:
        UserError: the folder lacks the file, or the package that reads it is not installed.
    """
    file = place.get("gguf_file")
    if file is None:
        return
    if Path(name).is_dir() and not (Path(name) / file).is_file():
        known = ", ".join(sorted(path.name for path in Path(name).glob(f"*{GGUF}"))) or "none"
        raise UserError(f"The folder {name} has no file {file} (GGUF files there: {known}). Correct the name.")
    from gistgate.build.gguf_size import check_reader

    check_reader()


def weight_size(name: str, dtype: Any, gguf: str | None = None) -> Size | None:
    """What the weights of a model in a folder need, from the headers of its files; None where nothing is known.

    Args:
        name: folder; of a hub id nothing is known.
        dtype: type in memory, or "auto" for that of the files.
        gguf: GGUF file in the folder; it is unpacked to float32 before it gets its dtype.

    Raises:
        UserError: the GGUF file is damaged.
    """
    folder = Path(name)
    if gguf is not None:
        from gistgate.build.gguf_size import gguf_size

        return gguf_size(folder / gguf, dtype) if (folder / gguf).is_file() else None
    try:
        found = sum(file_bytes(file, dtype) for file in weight_files(folder))
    except (SafetensorError, OSError, UserError):  # loading names the damaged file
        return None
    return Size(found, found) if found else None


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads; others, such as a consolidated copy, may lie beside them.

    Raises:
        UserError: the index of several files is damaged.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    content = read_json(index)
    if not isinstance(content, dict) or not isinstance(content.get("weight_map"), dict):
        raise UserError(f"{index} has no object 'weight_map'. Restore it or write it again.")
    return [folder / name for name in sorted({str(name) for name in content["weight_map"].values()})]


def file_bytes(file: Path, dtype: Any) -> int:
    """Bytes of a safetensors file's tensors in `dtype`."""
    if dtype == "auto":
        return file.stat().st_size
    with safe_open(file, framework="pt") as opened:
        numbers = (math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        return int(sum(numbers) * dtype.itemsize)


def whole_model(name: str, **options: Any) -> PreTrainedModel:
    """A model from safetensors files that hold all of its weights, all finite; pickled weights are never read.

    Code from elsewhere runs only where `options` say `trust_remote_code=True`.

    transformers fills weights that a file lacks with random numbers, and says so in a warning only.

    Raises:
        ValueError: weights are missing or not finite; transformers raises further errors.
    """
    options = {"trust_remote_code": False, **options, "use_safetensors": None if options.get("gguf_file") else True}
    model, report = AutoModelForCausalLM.from_pretrained(name, **options, output_loading_info=True)
    found: PreTrainedModel = model
    if file := options.get("gguf_file"):  # the configuration names the folder alone
        found.gguf_file = str(cached_file(name, file, revision=options.get("revision"), local_files_only=True))
    if lacking := sorted([*report["missing_keys"], *report["mismatched_keys"]], key=str):
        raise ValueError(f"its files lack {len(lacking)} weights, such as {lacking[0]}")
    for weight, parameter in found.named_parameters():
        if parameter.device.type != "meta" and not is_finite(parameter):
            raise ValueError(f"the weight {weight} is not finite")
    return found


def is_finite(parameter: Tensor) -> bool:
    """Whether all values are finite; floats of one byte have no test of their own."""
    is_narrow = parameter.is_floating_point() and parameter.element_size() == 1
    return bool((parameter.to(torch.bfloat16) if is_narrow else parameter).isfinite().all())
