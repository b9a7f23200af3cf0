"""Probes: from the states that predict a segment, the probability that its model finds the meaning out."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.core.files import (
    check_sealed,
    checksum,
    fingerprint,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)
from gistgate.core.identity import ModelIdentity, check_identity, identify_model
from gistgate.core.utils import UserError, cause_of, dataclass_from, fits

POOLINGS = ("mean", "last", "attention")
"""How the states of a segment become one vector."""


class Probe(nn.Module):
    """Pooling and an MLP with one hidden layer; the output is a logit."""

    def __init__(self, width: int, hidden_size: int = 64, pooling: str = "mean", dropout: float = 0.1) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise UserError(f"There is no pooling '{pooling}'. Known: {', '.join(POOLINGS)}.")
        self.width, self.hidden_size, self.pooling = width, hidden_size, pooling
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, 1, bias=False) if pooling == "attention" else None
        self.first = nn.Linear(width, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, states: Tensor, valid: Tensor) -> Tensor:
        """Logits [N] for `states [N, K, D]` of which `valid [N, K]`, a prefix of True, counts; 0 rows give 0."""
        if states.shape[-1] != self.width:
            raise UserError(
                f"The probe reads states of width {self.width}, but these have {states.shape[-1]}. Use the model it "
                "was trained for."
            )
        pooled = self.norm(self.pool(states.float(), valid))
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(pooled)))).squeeze(-1)
        return logits

    def pool(self, states: Tensor, valid: Tensor) -> Tensor:
        """One vector per segment [N, D]."""
        lengths = valid.sum(-1).clamp_min(1)
        if self.pooling == "last":
            at = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[-1])
            return states.gather(1, at).squeeze(1)
        if self.query is None:
            return (states * valid[..., None]).sum(1) / lengths[:, None]
        scores = self.query(states).squeeze(-1).masked_fill(~valid, torch.finfo(states.dtype).min)
        weights = scores.softmax(-1) * valid
        pooled: Tensor = (weights[..., None] * states).sum(1)
        return pooled


FORMAT = 1
"""Version of the folder's layout."""
ROLES = ("target", "draft")
KEYS = {"format", "style", "limit", "notes", "certificate", *ROLES}
"""What config.json holds."""
MOST = 1 << 24
"""Largest number of hidden units and of tokens in a segment that a folder may name."""
TEXTS = ("opinion", "replacement")
"""Settings of a certificate that are texts; all others are numbers."""


@dataclass(frozen=True)
class Probes:
    """A probe for each model, and the segments they know."""

    target: Probe
    draft: Probe
    style: str  # setting of the boundaries (gistgate.segments.writing)
    limit: int  # longest segment in tokens
    certificate: dict[str, Any] = field(default_factory=dict)
    """What calibration found to keep its budget: opinion, rule, settings, risk of the token gate (None without one),
    budget, confidence, n, bound; empty where nothing is certified."""

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
        config["certificate"] = self.certificate
        tensors_hash = fingerprint(folder / "model.safetensors")
        write_json(folder / "config.json", {**config, "checksum": checksum(config, tensors_hash)})


def load_probes(folder: str | Path, target: PreTrainedModel, draft: PreTrainedModel) -> Probes:
    """Read the folder and check it against both models."""
    folder = Path(folder)
    place, weights = folder / "config.json", folder / "model.safetensors"
    config, tensors = read_json(place), load_tensors(weights)
    sealed = config.pop("checksum", None) if isinstance(config, dict) else None
    probes = {}
    for role, model in zip(ROLES, (target, draft), strict=True):
        identity, hidden_size, pooling = described(config, role, place)
        check_identity(role, identity, identify_model(model))
        if (dtype := str(model.dtype).removeprefix("torch.")) != identity.dtype:
            warnings.warn(
                f"The {role} computes in {dtype}, the probes were trained on states in {identity.dtype}. No "
                "certificate covers that.",
                stacklevel=2,
            )
        width = model.config.get_text_config().hidden_size
        with torch.device("meta"):  # shapes alone: huge sizes in a configuration cost nothing
            probe = Probe(width, hidden_size, pooling)
        own = {name.removeprefix(f"{role}."): t for name, t in tensors.items() if name.startswith(f"{role}.")}
        want = {name: (tuple(t.shape), t.dtype) for name, t in probe.state_dict().items()}
        if want != {name: (tuple(t.shape), t.dtype) for name, t in own.items()}:
            raise UserError(
                f"The {role} probe's weights do not fit its config.json (pooling {probe.pooling}). Restore both files."
            )
        if not all(bool(torch.isfinite(t).all()) for t in own.values()):
            raise UserError(f"The {role} probe's weights are not finite. Restore the file or train it again.")
        probe = Probe(width, hidden_size, pooling)
        probe.load_state_dict(own)
        probes[role] = probe.eval().requires_grad_(False)
    check_sealed(place, sealed, config, fingerprint(weights))
    return Probes(probes["target"], probes["draft"], config["style"], config["limit"], config["certificate"])


def described(config: Any, role: str, where: Path) -> tuple[ModelIdentity, int, str]:
    """Whose states a probe reads, its hidden units and its pooling."""
    try:
        if config["format"] != FORMAT or not isinstance(config["style"], str):
            raise ValueError(f"format {FORMAT} and a style are expected")
        check_certificate(config["certificate"])
        sizes = {"limit": config["limit"], "hidden_size": config[role]["hidden_size"]}
        for name, size in sizes.items():
            if type(size) is not int or not 1 <= size <= MOST:
                raise ValueError(f"{name} is {size!r}, but it counts from 1 to {MOST}")
        if unknown := sorted(set(config) - KEYS):
            raise ValueError(f"unknown key '{unknown[0]}'")
        if not isinstance(pooling := config[role]["pooling"], str):
            raise ValueError(f"the pooling is {pooling!r}, but it has to be a text")
        return dataclass_from(ModelIdentity, config[role]["model"]), sizes["hidden_size"], pooling
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} describes no probes: {cause_of(error)}. Restore it or train them again.") from error


def check_certificate(value: Any) -> None:
    """Refuse a certificate of segments whose rule or settings are of another kind; an empty one certifies nothing."""
    if not isinstance(value, dict) or not isinstance(value.get("settings", {}), dict):
        raise ValueError("its certificate or the settings in it are no object")
    if not isinstance(value.get("rule", ""), str):
        raise ValueError(f"the certified rule is {value['rule']!r}, but it has to be a text")
    for name, setting in value.get("settings", {}).items():
        if not fits(setting, str if name in TEXTS else float | bool | None):
            raise ValueError(f"the setting '{name}' is {setting!r}")
