"""The table of the gates that lie in models/gates, ready to use: one line for each folder, from its own files."""

from __future__ import annotations

import re
from pathlib import Path

from gistgate.certificates.certificate import CERTIFICATE_FILE, OperatingPoint, Proof
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import CONFIG_FILE, Gate
from pipeline.common.paths import MODELS
from pipeline.report.markdown import table

GATES = MODELS / "gates"
HEADER = (
    "gate",
    "target",
    "draft",
    "learned on",
    "certified on",
    "budget, points",
    "certified bound, points",
    "loss on calibration prompts, points",
    "mean accepted length on calibration prompts",
    "calibration prompts",
    "certificate",
)
NONE = "No gate is published yet."


def gates_table(folder: Path = GATES) -> str:
    """A Markdown table with a line for each gate and budget; a sentence where there is no gate.

    Raises:
        UserError: a folder holds a damaged gate or certificate.
    """
    places = sorted(place for place in folder.glob("*") if (place / CONFIG_FILE).is_file())
    lines = [line for place in places for line in lines_of(place)]
    return table(HEADER, lines) if lines else NONE


def lines_of(place: Path) -> list[tuple[str, ...]]:
    """The lines of one gate: its certified budgets, or one line that says what is missing."""
    gate = Gate.load(place)
    config, proof = gate.config, gate.proof
    about = (f"[{place.name}]({place.as_posix()})", *partners(config), str(config.labels.get("task", "")))
    if proof is None:
        return [(*about, "", "", "no certificate: decodes strictly", "", "", "", "none")]
    found = [certified(point) for point in proof.certified] or [refused(proof)]
    link = f"[{CERTIFICATE_FILE}]({(place / CERTIFICATE_FILE).as_posix()})"
    return [(*about, certified_on(proof), *cells, link) for cells in found]


def certified_on(proof: Proof) -> str:
    """The task of the calibration prompts, or where else they come from."""
    named = re.search(r"the task '([^']+)'", proof.source)
    return named[1] if named else proof.source


def partners(config: GateConfig) -> tuple[str, str]:
    """Target and draft, with the draft's bits where it is quantised."""
    if config.draft is None:
        return config.target.name, "none"
    bits = f" ({config.draft.quantisation})" if config.draft.quantisation else ""
    return config.target.name, f"{config.draft.name}{bits}"


def certified(point: OperatingPoint) -> tuple[str, str, str, str, str]:
    """Budget, bound, measured loss, mean accepted length and n of a certified point."""
    length = f"{point.mean_accepted_length:.2f}"
    return f"{100 * point.budget:g}", f"{100 * point.bound:.1f}", lost(point), length, str(point.n)


def lost(point: OperatingPoint) -> str:
    """The loss that was measured, and how many answers were lost and gained; negative where more were gained."""
    return f"{100 * point.loss:.1f} ({point.losses} lost, {point.gains} gained)"


def refused(proof: Proof) -> tuple[str, str, str, str, str]:
    """The largest budget, for which nothing is certified either, with the bound of the refused setting."""
    point = proof.points[-1]
    found = f"{100 * point.bound:.1f}, so that it decodes strictly"
    return f"{100 * point.budget:g}", found, "–", "–", str(point.n)
