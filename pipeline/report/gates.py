"""The table of the gates that lie in models/gates, ready to use: one line for each folder, from its own files."""

from __future__ import annotations

from pathlib import Path

from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import CONFIG_FILE, Gate
from pipeline.common.paths import MODELS
from pipeline.report.markdown import table

GATES = MODELS / "gates"
HEADER = (
    "gate",
    "target",
    "draft",
    "task",
    "budget, points",
    "certified bound, points",
    "mean accepted length on calibration prompts",
    "calibration prompts",
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
        return [(*about, "", "no certificate: decodes strictly", "", "")]
    return [(*about, *certified(point)) for point in proof.certified] or [(*about, *refused(proof))]


def partners(config: GateConfig) -> tuple[str, str]:
    """Target and draft, with the draft's bits where it is quantised."""
    if config.draft is None:
        return config.target.name, "none"
    bits = f" ({config.draft.quantisation})" if config.draft.quantisation else ""
    return config.target.name, f"{config.draft.name}{bits}"


def certified(point: OperatingPoint) -> tuple[str, str, str, str]:
    """Budget, bound, mean accepted length and n of a certified point."""
    return f"{100 * point.budget:g}", f"{100 * point.bound:.1f}", f"{point.mean_accepted_length:.2f}", str(point.n)


def refused(proof: Proof) -> tuple[str, str, str, str]:
    """The largest budget, for which nothing is certified either, with the bound of the refused setting."""
    point = proof.points[-1]
    found = f"{100 * point.bound:.1f}, so that it decodes strictly"
    return f"{100 * point.budget:g}", found, "–", str(point.n)
