"""What models/pairs/<pair>.yaml says: which target, which draft model or other drafter, in which form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gistgate.build.checks import RETRIEVAL
from gistgate.errors import UserError
from gistgate.forward.quantised import check_kind
from pipeline.common.paths import PAIRS
from pipeline.common.reading import block, build, nearest
from pipeline.common.yaml_file import read_yaml
from pipeline.params.methods import MODEL


@block
class ModelSource:
    """Where one model comes from."""

    model: str
    """Hub id or folder."""
    name: str | None = None
    """What gates call the model where `model` is a folder, such as the hub id that it was fetched from; None: the
    folder's own name."""
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
        if self.model.startswith("~"):
            object.__setattr__(self, "model", str(Path(self.model).expanduser()))
        check_kind(self.quantise)
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise UserError(
                f"The pair names the dtype '{self.dtype}' for {self.model}, which torch does not know. "
                "Write float32, bfloat16 or float16."
            )

    @property
    def is_folder(self) -> bool:
        """A folder here rather than a hub id, which is `owner/name` or `name`."""
        return Path(self.model).is_dir() or self.model.startswith((".", "/")) or self.model.count("/") > 1

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
    draft: ModelSource | None = None
    """The model that proposes; None where `drafter` proposes without a model."""
    drafter: str = MODEL
    """What proposes: "model" for the draft model, or one of RETRIEVAL, which copies from the text."""
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
        if self.drafter not in (MODEL, *RETRIEVAL):
            known = [MODEL, *RETRIEVAL]
            raise UserError(f"The pair names the drafter '{self.drafter}'. {nearest(self.drafter, known, 'drafters')}")
        if (self.draft is None) == (self.drafter == MODEL):
            raise UserError(
                f"The pair of the target {self.target.model} needs one source of drafts: a model (`draft:`), or a "
                f"drafter that copies from the text (`drafter: {RETRIEVAL[0]}` or `drafter: {RETRIEVAL[1]}`). Name one "
                "of them and leave the other away."
            )

    @property
    def names(self) -> dict[str, str]:
        """The names that are said, by `target`, `draft` and `tokenizer`."""
        said = {"target": self.target.name, "draft": self.draft and self.draft.name}
        said["tokenizer"] = self.target.name if self.tokenizer is None else None
        return {role: name for role, name in said.items() if name}

    @property
    def models(self) -> list[ModelSource]:
        """The target and, where there is one, the draft model."""
        return list(self.roles.values())

    @property
    def roles(self) -> dict[str, ModelSource]:
        """The models by "target" and "draft"."""
        return {"target": self.target} if self.draft is None else {"target": self.target, "draft": self.draft}


def read_pair(name: str, folder: Path = PAIRS) -> PairSource:
    """Read the file of a pair.

    Raises:
        UserError: there is no such pair (the nearest name is offered), nothing drafts, or its file is damaged.
    """
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise UserError(f"There is no pair '{name}' in {folder}. {nearest(name, known, 'pairs')}")
    return build(PairSource, read_yaml(path), file=str(path))
