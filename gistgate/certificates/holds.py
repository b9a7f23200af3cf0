"""Decode as a certificate says: whatever is asked for that it does not cover is refused in one sentence.

Checked: models, tokenizer, gate, rule, settings, drafter and its data, K, guards, temperature, chat template and system
text; the engine unless the target computes in float32, where both engines give the same ids. Task, prompts, number of
solved examples and batching cannot be seen here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.certificates.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from gistgate.errors import UserError


def load_proof(place: str | Path) -> Certificate:
    """The certificate in a file or a folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    proof = read_certificate(place)
    if proof is None:
        raise UserError(f"{place} holds no {CERTIFICATE_FILE}. Name another folder, or run `gistgate calibrate` first.")
    return proof


def check_options(
    proof: Certificate, *, settings: dict[str, Any], budget: float | None, segments: str | None, **named: Any
) -> None:
    """Refuse options beside a certificate that say otherwise; None and what it says itself pass.

    Raises:
        UserError: which option, and what was certified.
    """
    asked = {name: (value, getattr(proof, name)) for name, value in named.items() if value is not None}
    asked |= {name: (value, proof.settings.get(name)) for name, value in settings.items()}
    if segments is not None:
        asked["segments"] = (segments, None)
    if budget is not None and budget < proof.budget:
        asked["budget"] = (budget, proof.budget)
    for name, (value, certified) in asked.items():
        if value != certified:
            known = "none" if certified is None else certified
            raise UserError(
                f"The certificate says {name} {known}, and {name} {value} is asked for beside it. Leave that option "
                "away, or decode without the certificate."
            )


def check_parts(
    proof: Certificate,
    gate: torch.nn.Module | None,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    *,
    engine: str,
    guards: Sequence[str],
    data: str | None,
) -> None:
    """Refuse parts that the certificate was not made with; `data` is the folder or file behind its drafter.

    Raises:
        UserError: what differs.
    """
    used: dict[str, Any] = {"guards": list(guards)}
    if target.dtype != torch.float32:
        used["engine"] = engine
    if data is not None:
        used["drafter_data"] = files_hash(Path(data))
    refuse(proof.mismatch(gate, target, draft, tokenizer, **used))


def check_request(
    proof: Certificate, *, temperature: float = 0.0, chat: bool = False, system: str | None = None
) -> None:
    """Refuse requests unlike the certified ones; a system text counts inside a chat template only.

    Raises:
        UserError: what differs.
    """
    prompting = {**proof.binding.get("prompting", {}), "chat_template": chat, "system": system if chat else None}
    refuse(proof.mismatch(temperature=temperature, prompting=prompting))


def refuse(broken: str | None) -> None:
    """Raise what `mismatch` found."""
    if broken:
        raise UserError(broken)


def files_hash(place: Path) -> str:
    """A short hash of a file, or of everything in a folder; where it lies does not matter."""
    digest = hashlib.sha256()
    for path in sorted(path for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()):
        digest.update(path.relative_to(place).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()[:16]
