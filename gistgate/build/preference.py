"""What `gistgate tune` found fastest on a machine, kept in a gate's folder.

`<gate>/tuned/` holds the certificate of one setting, in the usual form. Whoever decodes with the gate decodes as that
certificate says, so nothing looser than what is certified can be preferred. The choice belongs to the gate's own
certificate at that time: once the gate has another one, it is left aside, and so it is on other weights.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import CERTIFICATE_FILE, Proof, read_proof
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json
from gistgate.gates.gate import Gate

TUNED = "tuned"
"""Folder in the gate's folder."""
MEASURED = "speed.json"
"""Its file with what was measured."""
DECIDES = ("certificate", "rule", "settings", "block", "drafter", "budget", "confidence", "segments")
"""Wishes that say themselves what runs; with any of them the preference is left aside."""


class Preferred(str):
    """The folder of a certificate that nobody named: where it does not hold it is left aside instead of refused."""


def preferred(wishes: Wishes) -> Wishes:
    """The wishes with the preferred certificate, where there is one and the user leaves the choice open."""
    if not isinstance(wishes.gate, str | Path) or any(getattr(wishes, name) not in (None, {}) for name in DECIDES):
        return wishes
    place = Path(wishes.gate) / TUNED
    if not (place / CERTIFICATE_FILE).is_file():
        return wishes
    try:
        measured = read_json(place / MEASURED)
    except UserError:  # missing or cut
        measured = None
    if not isinstance(measured, dict) or measured.get("certificate") != chosen_among(wishes.gate):
        warnings.warn(
            f"{place} is damaged, or was chosen when the gate had another certificate, and is left aside. Run "
            "`gistgate tune` again.",
            stacklevel=3,
        )
        return wishes
    return replace(wishes, certificate=Preferred(place))


def settled(wishes: Wishes, gate: Gate | None, target: PreTrainedModel, draft: PreTrainedModel | None) -> Wishes:
    """The wishes without a preferred certificate that does not hold with them.

    That is one of other weights where these hold the gate back, and one of other guards, engine or ends of drafts,
    which a warning names.
    """
    if not isinstance(wishes.certificate, Preferred) or gate is None:
        return wishes
    left, proof = replace(wishes, certificate=None), read_proof(wishes.certificate)
    if gate.reservation is not None and (proof is None or proof.mismatch(target=target, draft=draft)):
        return left
    if proof is None or not (others := named_otherwise(wishes, proof, target)):
        return wishes
    warnings.warn(
        f"What `gistgate tune` chose is left aside, because it was measured with {others}. Tune again with the options "
        "of this command to have a choice for them.",
        stacklevel=3,
    )
    return left


def named_otherwise(wishes: Wishes, proof: Proof, target: PreTrainedModel) -> str:
    """Of the options that a user may name beside a preferred certificate, those that it says otherwise, in words."""
    said: dict[str, Any] = {"guards": list(wishes.guards), "engine": wishes.engine}
    if target.dtype == torch.float32:  # both engines give the same ids
        del said["engine"]
    others = [f"{name} {proof.scope.get(name) or 'none'}" for name, value in said.items()
              if proof.scope.get(name) != value]  # fmt: skip
    if wishes.stop_drafting is not None and not proof.scope.get("drafting"):
        others.append("drafts that end at K")
    return ", ".join(others)


def chosen_among(gate: str | Path) -> str | None:
    """What tells the gate's own certificate from others; None where it has none."""
    file = Path(gate) / CERTIFICATE_FILE
    return fingerprint(file) if file.is_file() else None


def forget(gate: str | Path) -> None:
    """Remove the choice of an earlier measurement."""
    shutil.rmtree(Path(gate) / TUNED, ignore_errors=True)
