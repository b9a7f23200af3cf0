"""What models/pairs/<pair>.yaml says: which target, which draft, in which form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gistgate.errors import UserError
from gistgate.forward.quantised import check_kind
from pipeline.common.paths import PAIRS
from pipeline.common.reading import block, build, nearest, read_yaml


@block
class ModelSource:
    """Where one model comes from."""

    model: str
    """Hub id or folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None takes the newest."""
    gguf_file: str | None = None
    """GGUF file in the folder or repository, unpacked to `dtype`; None reads safetensors."""
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
    def place_of_weights(self) -> str:
        """Device of a model without a device_map."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def place(self) -> dict[str, Any]:
        """Arguments that every from_pretrained gets."""
        gguf = {"gguf_file": self.gguf_file} if self.gguf_file else {}
        return {"revision": self.revision or "main", "trust_remote_code": False, **gguf}


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
        UserError: there is no such pair (the nearest name is offered), it has no draft, or its file is damaged.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise UserError(f"There is no pair '{name}' in {folder}. {nearest(name, known, 'pairs')}")
    content = read_yaml(path)
    if isinstance(content, dict) and "target" in content and content.get("draft") is None:
        raise UserError(
            f"{path} names no draft, and the pipeline labels the mismatches of a draft model. Name one, or certify a "
            "drafter without a model by `gistgate calibrate --target MODEL --drafter suffix --rule prob-ratio`."
        )
    return build(PairSource, content, file=str(path))
