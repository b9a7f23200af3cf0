"""Whether a gate or a certificate belongs to the models that vLLM serves."""

from __future__ import annotations

import logging
from typing import Any

from gistgate.certificates.certificate import Proof, scope_mismatch
from gistgate.errors import UserError
from gistgate.identity import LIGHTER, check_identity, check_tokenizer, gate_hash, model_scope, tokenizer_scope
from gistgate.integrations.vllm.served import Served, folder_fingerprint

log = logging.getLogger("vllm.gistgate")


def check_gate(gate: Any, served: Served) -> None:
    """Refuse a gate of another target or tokenizer, and one whose inputs vLLM does not show; warn of another dtype.

    Raises:
        UserError: what differs and what to do.
    """
    expected = gate.config.target
    check_identity("target", expected, served.identity)
    if served.identity.fingerprint is None:
        log.warning("gistgate: '%s' is no folder, so its weights were not compared with the gate's.", served.model)
    if served.tokenizer is not None:
        check_tokenizer(gate.config.tokenizer, served.tokenizer)
    if expected.dtype != served.dtype:
        log.warning(
            "gistgate: the gate was trained on states in %s, and vLLM computes in %s.", expected.dtype, served.dtype
        )
    if gate.layers - {"post"}:
        raise UserError(
            f"The gate reads the layers {', '.join(sorted(gate.layers))}, but vLLM shows only the states behind the "
            "final norm. Train a gate on 'h_tok:post' or 'h_pred:post'."
        )
    if gate.wants_q:
        raise UserError("The gate reads draft probabilities, which vLLM does not show. Train one without 'draft'.")


def check_proof(proof: Proof, served: Served, gate: Any, **used: Any) -> None:
    """Refuse a certificate of other models, another tokenizer, gate or drafter, or of another entry of `used`.

    Raises:
        UserError: what differs.
    """
    found: dict[str, Any] = {
        "target": model_scope(served.identity),
        "gate": None if gate is None else gate_hash(gate),
        "drafter": served.drafter,
        "drafting": None,  # ends of drafts and further sources are this library's own
        **used,
    }
    if served.tokenizer is not None:
        found |= tokenizer_scope(served.tokenizer, proof.scope)
        if "ends" in proof.scope:
            found["ends"] = list(served.eos_ids)
    certified = {name: proof.scope.get(name) for name in found}
    draft = proof.scope.get("draft")
    if draft is not None and any(draft.get(name) is not None for name in LIGHTER):
        raise UserError(
            "The certificate was made with a draft model of fewer bits or a smaller vocabulary, and vLLM serves "
            "neither. Calibrate with the draft model as it is, or serve without the certificate."
        )
    if draft is not None and served.draft is not None:  # vLLM chooses the draft model's dtype, so only weights count
        certified["draft"] = {"fingerprint": draft["fingerprint"]}
        found["draft"] = {"fingerprint": folder_fingerprint(served.draft)}
    broken = scope_mismatch(certified, found)
    if broken:
        raise UserError(broken)
