"""How a model of texts makes one vector of its states: as a sentence-transformers folder says, else by the mean.

Axis letters: N texts, T tokens, D width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.utils import cached_file

from gistgate.errors import UserError
from gistgate.files import read_json

POOLINGS = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls", "lasttoken": "last"}
"""Those that are known here, by both notations of sentence-transformers."""
STEPS = ("Transformer", "Pooling", "Normalize")
"""Steps of a sentence-transformers model that are known here; a cosine does not see whether the last one is there."""


def pooling_of(name: str) -> str:
    """The pooling of a folder or model: mean, cls or last; mean where it says nothing.

    Raises:
        UserError: a sentence-transformers model that does something else with its states.
    """
    steps = settings(name, "modules.json")
    if steps is None:
        return "mean"
    kinds = {step["type"].rsplit(".", 1)[-1]: step["path"] for step in steps}
    modes = modes_of(settings(name, f"{kinds['Pooling']}/config.json") or {}) if "Pooling" in kinds else []
    unknown = [kind for kind in kinds if kind not in STEPS] + [mode for mode in modes if mode not in POOLINGS]
    if unknown or len(modes) != 1:
        said = ", ".join(unknown or modes) or "nothing that is named"
        raise UserError(
            f"The judge's model '{name}' pools by {said}, and one of mean, cls and lasttoken is known here. "
            "Choose another model."
        )
    return POOLINGS[modes[0]]


def modes_of(config: dict[str, Any]) -> list[str]:
    """The poolings that are joined: `pooling_mode`, or the switches `pooling_mode_...`."""
    if isinstance(mode := config.get("pooling_mode"), str):
        return [mode]
    return [key.removeprefix("pooling_mode_") for key, on in config.items() if "pooling_mode_" in key and on is True]


def settings(name: str, file: str) -> Any:
    """A JSON file of a model; None where it has none."""
    try:
        return read_json(Path(str(cached_file(name, file))))
    except OSError:
        return None


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector for each text [N, D] of `states [N, T, D]`, padded on the right where `mask [N, T]` is 0."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        at = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        return states.gather(1, at).squeeze(1)
    mean: Tensor = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return mean
