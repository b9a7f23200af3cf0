"""Decode as a certificate says: whatever is asked for that it does not cover is refused in one sentence.

Checked: models, tokenizer, gate, rule, settings, drafter, the files of both and how drafts end, K, guards, temperature,
chat template and system text; the engine unless the target computes in float32, where both engines give the same ids.
Task, prompts, number of solved examples and batching cannot be seen here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.certificates.certificate import CERTIFICATE_FILE, Proof, read_proof
from gistgate.errors import UserError
from gistgate.files import fingerprint, named_files


def load_proof(place: str | Path) -> Proof:
    """The proof in a file or a folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    proof = read_proof(place)
    if proof is None:
        raise UserError(f"{place} holds no {CERTIFICATE_FILE}. Name another folder, or run `gistgate calibrate` first.")
    return proof


def check_parts(
    proof: Proof,
    gate: torch.nn.Module | None,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    *,
    engine: str,
    guards: Sequence[str],
    data: Path | None,
    drafting: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Refuse parts that the certificate was not made with.

    `data` is the folder or file behind its drafter, `drafting` the drafter's `binding`, `settings` those of the rule,
    which may name files.

    Raises:
        UserError: what differs.
    """
    used: dict[str, Any] = {"guards": list(guards), "drafting": drafting or None}
    if target.dtype != torch.float32:
        used["engine"] = engine
    if "rule_data" in proof.scope:
        used["rule_data"] = files_behind(settings or {})
    if data is not None:
        used["drafter_data"] = fingerprint(data)
    refuse(proof.mismatch(gate, target, draft, tokenizer, **used))


def files_behind(settings: dict[str, Any]) -> str:
    """Fingerprint of the files that settings of a rule name.

    Raises:
        UserError: there are none, though the certificate was made with some.
    """
    found = named_files(settings)
    if not found:
        names = ", ".join(f"{name}={value}" for name, value in settings.items() if isinstance(value, str)) or "none"
        raise UserError(
            f"The certificate was made with a file that its rule reads, and no such file is here ({names}). Start in "
            "the folder that this path is relative to."
        )
    return fingerprint(*found)


def check_request(proof: Proof, *, temperature: float = 0.0, chat: bool = False, system: str | None = None) -> None:
    """Refuse requests unlike the certified ones; a system text counts inside a chat template only.

    Raises:
        UserError: what differs.
    """
    prompting = {**proof.scope.get("prompting", {}), "chat_template": chat, "system": system if chat else None}
    refuse(proof.mismatch(temperature=temperature, prompting=prompting))


def proof_in_use(decoder: Any) -> Proof | None:
    """The certificate beside a decoder's gate, where the decoder is loose by its rule; None elsewhere."""
    proof = getattr(decoder.parts.gate, "proof", None)
    return proof if proof is not None and decoder.rule.knob is not None and decoder.rule.id == proof.rule else None


def check_greedy(temperature: float) -> None:
    """Refuse sampling where segments decide, whose certificates are about greedy decoding.

    Raises:
        UserError: tokens are sampled.
    """
    if temperature:
        raise UserError(f"Segments were certified for greedy decoding, and the temperature is {temperature:g} here.")


def warn_uncovered(check: Callable[[], None]) -> str | None:
    """Run a check of requests, and warn of what it refuses: nobody named the certificate, so that decoding goes on.

    Returns what it refuses; None where it passes.
    """
    try:
        check()
    except UserError as error:
        warnings.warn(f"No certificate covers these requests. {error}", stacklevel=2)
        return str(error)
    return None


def refuse(broken: str | None) -> None:
    """Raise what `mismatch` found."""
    if broken:
        raise UserError(broken)
