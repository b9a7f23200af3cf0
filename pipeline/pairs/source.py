"""What models/pairs/<pair>.yaml says: which target, which draft, in which form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gistgate.errors import UserError
from gistgate.forward.quantised import check_kind
from pipeline.common.paths import PAIRS
from pipeline.common.reading import block, nearest, read


@block
class ModelSource:
    """Where one model comes from."""

    model: str
    """Hub id or folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None takes the newest."""
    dtype: str = "bfloat16"
    """Type of the weights in memory, a name in torch."""
    device_map: str | None = None
    """Passed to from_pretrained, such as `auto` (needs accelerate); None puts the whole model on `device`."""
    device: str | None = None
    """Device without a device_map; None takes the GPU where there is one."""
    quantise: str = "none"
    """Bits that a draft's weights are rounded to when it is loaded: int8, int4 or none."""

    def __post_init__(self) -> None:
        check_kind(self.quantise)
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise UserError(
                f"The pair names the dtype '{self.dtype}' for {self.model}, which torch does not know. "
                "Write float32, bfloat16 or float16."
            )

    @property
    def is_folder(self) -> bool:
        """A folder here rather than a hub id, which is `owner/name` or `name`."""
        return Path(self.model).is_dir() or self.model.startswith((".", "/", "~")) or self.model.count("/") > 1

    @property
    def place(self) -> dict[str, Any]:
        """Arguments that every from_pretrained gets."""
        return {"revision": self.revision or "main", "trust_remote_code": False}


@block
class PairSource:
    """The content of a pair's file."""

    target: ModelSource
    """The model whose answers count."""
    draft: ModelSource
    """The model that proposes."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer; None takes the target's."""
    training: dict[str, Any] | None = None
    """For pairs that are trained here: keys that replace those of `pair_training`; None for ready-made models."""

    def __post_init__(self) -> None:
        if self.target.quantise != "none":
            raise UserError(
                f"The pair quantises its target {self.target.model} to {self.target.quantise}, which would change the "
                "answers that count. Only `draft` has `quantise`."
            )


def read_pair(name: str, folder: Path = PAIRS) -> PairSource:
    """Read the file of a pair.

    Raises:
        UserError: there is no such pair (the nearest name is offered), or its file is damaged.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise UserError(f"There is no pair '{name}' in {folder}. {nearest(name, known, 'pairs')}")
    return read(PairSource, path)
