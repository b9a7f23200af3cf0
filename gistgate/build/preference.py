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

from transformers import PreTrainedModel

from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import CERTIFICATE_FILE, read_proof
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
    """The wishes without a preferred certificate of other weights, where these weights hold the gate back."""
    if not isinstance(wishes.certificate, Preferred) or gate is None or gate.reservation is None:
        return wishes
    proof = read_proof(wishes.certificate)
    is_of_others = proof is None or proof.mismatch(target=target, draft=draft)
    return replace(wishes, certificate=None) if is_of_others else wishes


def chosen_among(gate: str | Path) -> str | None:
    """What tells the gate's own certificate from others; None where it has none."""
    file = Path(gate) / CERTIFICATE_FILE
    return fingerprint(file) if file.is_file() else None


def forget(gate: str | Path) -> None:
    """Remove the choice of an earlier measurement.

    Raises:
        UserError: it cannot be removed, and would go on to decide.
    """
    place = Path(gate) / TUNED
    shutil.rmtree(place, ignore_errors=True)
    if place.exists():
        raise UserError(
            f"{place} holds the choice of an earlier measurement and cannot be removed. Remove it by hand, or check "
            "the permissions."
        )
