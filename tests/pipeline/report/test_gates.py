"""The table of the gates that lie in a folder: a line for each certified budget, with its loss and its certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gistgate.certificates.certificate import OperatingPoint
from pipeline.report.gates import HEADER, NONE, gates_table
from tests.certificates.proofs import gate_with, point, proof_for

LOSS, CERTIFICATE = HEADER.index("loss on calibration prompts, points"), HEADER.index("certificate")
BUDGET, TASK = HEADER.index("budget, points"), HEADER.index("certified on")


def rows(folder: Path, *points: OperatingPoint) -> list[list[str]]:
    """The cells of the table's lines, for a gate with a certificate of these points, or with none."""
    gate = gate_with()
    gate.save(folder / "one")
    if points:
        proof_for(gate, *points).save(folder / "one")
    lines = gates_table(folder).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    "loss, losses, gains, shown",
    [(0.0015, 8, 5, "0.1 (8 lost, 5 gained)"), (-0.005, 0, 1, "-0.5 (0 lost, 1 gained)")],
)
def test_the_measured_loss_stands_beside_its_bound(
    tmp_path: Path, loss: float, losses: int, gains: int, shown: str
) -> None:
    (row,) = rows(tmp_path, point(0.03, loss=loss, losses=losses, gains=gains))
    assert row[LOSS] == shown and len(row) == len(HEADER)


def test_every_certified_budget_has_a_line_that_links_the_certificate(tmp_path: Path) -> None:
    found = rows(tmp_path, point(0.01, certified=False), point(0.03), point(0.05))
    assert [row[BUDGET] for row in found] == ["3", "5"]
    for row in found:
        name, _, link = row[CERTIFICATE].partition("](")
        assert name == "[certificate.json" and Path(link.removesuffix(")")).is_file()


def test_a_refused_gate_links_its_certificate_and_shows_no_loss(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, point(0.03, certified=False))
    assert row[LOSS] == "–" and row[CERTIFICATE].startswith("[certificate.json]") and len(row) == len(HEADER)


def test_a_gate_without_a_certificate_links_none(tmp_path: Path) -> None:
    (row,) = rows(tmp_path)
    assert row[CERTIFICATE] == "none" and len(row) == len(HEADER)


@pytest.mark.parametrize(
    "source, shown",
    [("training documents of the task 'sums' and prompts like these", "sums"), ("own.jsonl", "own.jsonl")],
)
def test_what_a_gate_is_certified_on_stands_beside_what_it_learned_from(
    tmp_path: Path, source: str, shown: str
) -> None:
    gate = gate_with()
    gate.save(tmp_path / "one")
    replace(proof_for(gate, point(0.03)), source=source).save(tmp_path / "one")
    line = gates_table(tmp_path).splitlines()[2]
    assert [cell.strip() for cell in line.strip("|").split("|")][TASK] == shown


def test_no_gate_is_a_sentence(tmp_path: Path) -> None:
    assert gates_table(tmp_path) == NONE
