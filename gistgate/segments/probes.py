"""Probes: from the states that predict a segment, the probability that its model finds the meaning
out.
"""

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.core.files import (
    check_sealed,
    fingerprint,
    load_tensors,
    read_sealed,
    save_tensors,
    write_sealed,
)
from gistgate.core.identity import ModelIdentity, check_identity, identify_model
from gistgate.core.rule import row_at
from gistgate.core.utils import dataclass_from
from gistgate.gate import Gate


class Probe(nn.Module):
    """Pooling and an MLP with one hidden layer; the output is a logit."""

    def __init__(self, width: int, hidden_size: int = 64, pooling: str = "mean") -> None:
        """`pooling`, how the states of a segment become one vector, is mean, last or attention."""
        super().__init__()
        self.width = width
        self.hidden_size = hidden_size
        self.pooling = pooling
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, 1, bias=False) if pooling == "attention" else None
        self.first = nn.Linear(width, hidden_size)
        self.dropout = nn.Dropout(0.1)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, states: Tensor, valid: Tensor) -> Tensor:
        """Logits [N] for `states [N, K, D]` of which `valid [N, K]`, a prefix of True, counts; 0
        rows give 0.
        """
        pooled = self.norm(self.pool(states.float(), valid))
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(pooled)))).squeeze(-1)
        return logits

    def pool(self, states: Tensor, valid: Tensor) -> Tensor:
        """One vector per segment [N, D]."""
        lengths = valid.sum(-1).clamp_min(1)
        if self.pooling == "last":
            return row_at(states, lengths - 1)
        if self.query is None:
            return (states * valid[..., None]).sum(1) / lengths[:, None]
        scores = self.query(states).squeeze(-1).masked_fill(~valid, torch.finfo(states.dtype).min)
        weights = scores.softmax(-1) * valid
        pooled: Tensor = (weights[..., None] * states).sum(1)
        return pooled


FORMAT = 1
"""Version of the folder's layout."""
GATE = "gate"
"""Folder of the token gate inside an exported folder of probes."""
ROLES = ("target", "draft")


@dataclass(frozen=True)
class Probes:
    """A probe for each model, and the segments they know."""

    target: Probe
    draft: Probe
    style: str
    """Setting of the boundaries (gistgate.segments.writing)."""
    limit: int
    """Longest segment in tokens."""
    certificate: dict[str, Any] = field(default_factory=dict)
    """What calibration found to keep its budget: opinion, rule, settings, risk of the token gate
    (None without one), budget, confidence, n, bound; empty where nothing is certified."""
    gate: Gate | None = None
    """The token gate inside the folder; None without one."""

    def save(
        self,
        folder: str | Path,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        **notes: Any,
    ) -> None:
        """Write the folder; `notes` say where the probes come from."""
        config: dict[str, Any] = {
            "format": FORMAT,
            "style": self.style,
            "limit": self.limit,
            "notes": notes,
            "certificate": self.certificate,
        }
        tensors: dict[str, Tensor] = {}
        for role, probe, model in zip(ROLES, (self.target, self.draft), (target, draft)):
            config[role] = {
                "pooling": probe.pooling,
                "hidden_size": probe.hidden_size,
                "model": asdict(identify_model(model)),
            }
            tensors |= {f"{role}.{name}": tensor for name, tensor in probe.state_dict().items()}
        weights = Path(folder) / "model.safetensors"
        save_tensors(weights, tensors)
        write_sealed(Path(folder) / "config.json", config, fingerprint(weights))


def load_probes(
    folder: str | Path,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: Any = None,
) -> Probes:
    """Read the folder and check it against both models; its token gate is read where a tokenizer is
    given.
    """
    place = Path(folder) / "config.json"
    file = Path(folder) / "model.safetensors"
    config, sealed = read_sealed(place, "folder of probes", "Train them again.", FORMAT, "format")
    tensors = load_tensors(file)
    check_sealed(place, sealed, config, fingerprint(file))
    probes: dict[str, Any] = {}
    for role, model in zip(ROLES, (target, draft)):
        described = config[role]
        identity = dataclass_from(ModelIdentity, described["model"])
        present = identify_model(model)
        check_identity(role, identity, present, "folder of probes")
        if present.dtype != identity.dtype:
            warnings.warn(
                f"The {role} computes in {present.dtype}, the probes were trained on states in"
                f" {identity.dtype}. No certificate covers that.",
                stacklevel=2,
            )
        width = model.config.get_text_config().hidden_size
        probe = Probe(width, described["hidden_size"], described["pooling"])
        weights = {}
        for name, tensor in tensors.items():
            if name.startswith(f"{role}."):
                weights[name.removeprefix(f"{role}.")] = tensor
        probe.load_state_dict(weights)
        probes[role] = probe.eval().requires_grad_(False)
    gate_folder = Path(folder) / GATE
    gate = None
    if tokenizer is not None and gate_folder.is_dir():
        gate = Gate.load(gate_folder, target, draft, tokenizer)
    settings = {name: config[name] for name in ("style", "limit", "certificate")}
    return Probes(**probes, **settings, gate=gate)
