"""What `gistgate tune` found fastest on a machine, kept in a gate's folder.

`<gate>/tuned/` holds the certificate of one setting, in the usual form. Whoever decodes with the gate decodes as that
certificate says, so nothing looser than what is certified can be preferred.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import CERTIFICATE_FILE

TUNED = "tuned"
"""Folder in the gate's folder."""
DECIDES = ("certificate", "rule", "settings", "block", "drafter", "budget", "confidence", "segments")
"""Wishes that say themselves what runs; with any of them the preference is left aside."""


def preferred(wishes: Wishes) -> Wishes:
    """The wishes with the preferred certificate, where there is one and the user leaves the choice open."""
    if not isinstance(wishes.gate, str | Path) or any(getattr(wishes, name) not in (None, {}) for name in DECIDES):
        return wishes
    place = Path(wishes.gate) / TUNED
    return replace(wishes, certificate=str(place)) if (place / CERTIFICATE_FILE).is_file() else wishes
