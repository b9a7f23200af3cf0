"""Whether a gate or a certificate belongs to the models that vLLM serves."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from gistgate.certificates.certificate import Certificate, agree, gate_hash, read_certificate, shown
from gistgate.errors import UserError
from gistgate.identity import check_tokenizer, mismatch, sampled
from gistgate.integrations.vllm.served import Served, weight_files

log = logging.getLogger("vllm.gistgate")

SHAPE = ("architecture", "hidden_size", "num_layers", "vocabulary_size")


def check_gate(gate: Any, served: Served, certified: bool) -> None:
    """Refuse a gate of another target or tokenizer, and one whose states vLLM does not show.

    Another dtype is refused where a certified setting was asked for; else a warning says so.

    Raises:
        UserError: what differs and what to do.
    """
    expected = gate.config.target
    for name in SHAPE:
        if getattr(expected, name) != getattr(served, name):
            wrong = (name.replace("_", " "), getattr(expected, name), getattr(served, name))
            raise UserError(mismatch("target", *wrong, expected.name))
    found = fingerprint(served)
    if None not in (expected.fingerprint, found) and expected.fingerprint != found:
        raise UserError(mismatch("target", "weights", str(expected.fingerprint)[:12], str(found)[:12], expected.name))
    if found is None:
        log.warning("gistgate: '%s' is no folder, so its weights were not compared with the gate's.", served.model)
    if served.tokenizer is not None:
        check_tokenizer(gate.config.tokenizer, served.tokenizer)
    if expected.dtype != served.dtype:
        sentence = (
            f"The gate was trained and certified on states in {expected.dtype}, and vLLM computes in {served.dtype}."
        )
        if certified:
            raise UserError(f"{sentence} Serve with --dtype {expected.dtype}, or name the risk yourself.")
        log.warning("gistgate: %s Its certificates do not hold here.", sentence)
    if gate.layers - {"post"}:
        raise UserError(
            f"The gate reads the layers {', '.join(sorted(gate.layers))}, but vLLM shows only the states behind the "
            "final norm. Train a gate on 'h_tok:post' or 'h_pred:post'."
        )
    if gate.wants_q:
        raise UserError("The gate reads draft probabilities, which vLLM does not show. Train one without 'draft'.")


def check_certificate(place: str, served: Served, gate: Any) -> Certificate:
    """The certificate at `place`.

    Raises:
        UserError: there is none, or it was made for other models, another gate, drafter, K or temperature.
    """
    proof = read_certificate(place)
    if proof is None:
        raise UserError(f"{place} holds no certificate. Name another folder, or run `gistgate calibrate` first.")
    broken = proof.mismatch(gate)
    if broken:
        raise UserError(broken)
    found: dict[str, Any] = {name: getattr(served, name) for name in (*SHAPE, "dtype")}
    found["fingerprint"] = fingerprint(served)
    pairs = {
        "target": (proof.binding.get("target"), found),
        "drafter": (proof.drafter, served.drafter),
        "K": (proof.block, served.num_draft),
        "gate": (proof.binding.get("gate"), None if gate is None else gate_hash(gate)),
    }
    for name, (certified, here) in pairs.items():
        if not agree(certified, here):
            old, new = shown(certified, here)
            raise UserError(
                f"The certificate does not hold here, because of another {name} ({old} certified, {new} here): "
                "calibrate this combination, or serve with an explicit setting."
            )
    return proof


def fingerprint(served: Served) -> str | None:
    """The hash of `gistgate.identity.fingerprint`, read from a model folder's weights; None for a hub id."""
    import torch
    from safetensors import safe_open

    digest, places = hashlib.sha256(), {}
    for path in weight_files(served.model):
        with safe_open(path, framework="pt") as file:
            places.update(dict.fromkeys(file.keys(), path))
    for name, path in sorted(places.items()):
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(sampled(tensor).view(torch.int16).numpy().tobytes())
    return digest.hexdigest() if places else None
