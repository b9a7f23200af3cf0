"""Both probes in one folder: config.json and model.safetensors, bound to the models they were trained for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.files import load_tensors, read_json, save_tensors, write_json
from gistgate.gates.identity import ModelIdentity, check_model, identify_model
from gistgate.segments.probes import Probe

FORMAT = 1
"""Version of the folder's layout."""
ROLES = ("target", "draft")


@dataclass(frozen=True)
class Probes:
    """A probe for each model, and the segments they know."""

    target: Probe
    draft: Probe
    style: str
    """Setting of the boundaries (gistgate.segments.boundaries)."""
    limit: int
    """Longest segment in tokens."""

    def save(self, folder: str | Path, target: PreTrainedModel, draft: PreTrainedModel, **notes: Any) -> None:
        """Write the folder; `notes` say where the probes come from."""
        folder = Path(folder)
        models = {"target": target, "draft": draft}
        described = {
            role: {
                "pooling": getattr(self, role).pooling,
                "hidden_size": getattr(self, role).hidden_size,
                "model": asdict(identify_model(models[role])),
            }
            for role in ROLES
        }
        tensors = {f"{role}.{name}": t for role in ROLES for name, t in getattr(self, role).state_dict().items()}
        save_tensors(folder / "model.safetensors", tensors)
        config = {"format": FORMAT, "style": self.style, "limit": self.limit, **described, "notes": notes}
        write_json(folder / "config.json", config)


def load_probes(folder: str | Path, target: PreTrainedModel, draft: PreTrainedModel) -> Probes:
    """Read the folder and check it against both models.

    Raises:
        UserError: a file is missing or damaged, or the probes were trained for another model or pooling.
    """
    folder = Path(folder)
    config, tensors = read_json(folder / "config.json"), load_tensors(folder / "model.safetensors")
    if config.get("format") != FORMAT or not {"style", "limit", *ROLES} <= config.keys():
        raise UserError(f"{folder}/config.json describes no probes of format {FORMAT}. Train them again.")
    probes = {}
    for role, model in zip(ROLES, (target, draft), strict=True):
        check_model(role, ModelIdentity(**config[role]["model"]), model)
        width = model.config.get_text_config().hidden_size
        probe = Probe(width, config[role]["hidden_size"], config[role]["pooling"])
        own = {name.removeprefix(f"{role}."): t for name, t in tensors.items() if name.startswith(f"{role}.")}
        want = {name: tuple(t.shape) for name, t in probe.state_dict().items()}
        if want != {name: tuple(t.shape) for name, t in own.items()}:
            raise UserError(
                f"The {role} probe's weights do not fit its config.json (pooling {probe.pooling}). Restore both files."
            )
        if not all(bool(torch.isfinite(t).all()) for t in own.values()):
            raise UserError(f"The {role} probe's weights are not finite. Restore the file or train it again.")
        probe.load_state_dict(own)
        probes[role] = probe.eval().requires_grad_(False)
    return Probes(probes["target"], probes["draft"], config["style"], config["limit"])
