"""What `gistgate tune` found fastest on a machine: a certificate in a folder of its own inside that
of the gate.
"""

import warnings
from pathlib import Path

from gistgate.core.files import fingerprint, read_json
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import CERTIFICATE_FILE, Certificate, read_certificate
from gistgate.models.options import DecodeOptions

TUNED = "tuned"  # the folder
MEASURED = "speed.json"  # its file with the measurement
DECIDES = (
    "certificate",
    "rule",
    "settings",
    "block",
    "drafter",
    "budget",
    "confidence",
    "segments",
)
"""Options that say themselves what runs; with any of them the tuned choice is left aside."""


def tuned_certificate(options: DecodeOptions) -> Certificate | None:
    """The tuned certificate in the folder of the gate, where there is one and the user leaves the
    choice open.
    """
    if not isinstance(options.gate, str | Path):
        return None
    if any(getattr(options, name) not in (None, {}) for name in DECIDES):
        return None
    place = Path(options.gate) / TUNED
    if not (place / CERTIFICATE_FILE).is_file():
        return None
    try:
        measured = read_json(place / MEASURED)["certificate"]
    except (KeyError, TypeError, UserError):  # missing or cut
        measured = ""
    if measured == chosen_among(options.gate):
        return read_certificate(place)
    warnings.warn(
        f"{place} is damaged, or was chosen when the gate had another certificate, and is left"
        " aside. Run `gistgate tune` again.",
        stacklevel=3,
    )
    return None


def chosen_among(gate: str | Path) -> str | None:
    """What tells the gate's own certificate from others; None where it has none."""
    file = Path(gate) / CERTIFICATE_FILE
    return fingerprint(file) if file.is_file() else None
