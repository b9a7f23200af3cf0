"""The table of docs/reliability.md shows what benchmarks/results/reliability.json holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "benchmarks/results/reliability.json").read_text())
SHOWN = {
    "damaged": "{damaged_cases} cases, {damaged_unclear} unclear",
    "kills": "{kills} disturbances in {kills_passes} passes on unchanged code, {kills_lost} lost",
    "hung": "{kills_hung} of the disturbances",
    "copies": "{copies_artefacts} artefacts, {copies_differing} differing",
    "sweep": "{sweep_passed} of {sweep_parts} parts have passed, {sweep_failed} failed",
    "soak": "{soak_requests:,} requests: {soak_growth_mib} MiB of growth after the first fifth, {soak_differing} of "
    "the last 100 answers differ",
    "served": "{served_requests:,} requests: {served_growth_mib} MiB of growth after the first fifth, "
    "{served_growth_without_mib} MiB without the plug-in; {served_differing} of the last 100 answers differ",
}
"""Sentences of the page, with the counts of the file."""


@pytest.mark.parametrize("name", SHOWN)
def test_the_page_shows_the_counted_figures(name: str):
    assert SHOWN[name].format(**FOUND) in (ROOT / "docs/reliability.md").read_text()


def test_every_disturbance_is_published():
    lines = (ROOT / "benchmarks/results/disturbances.jsonl").read_text().splitlines()
    assert len(lines) == FOUND["kills"]
    assert all({"way", "stage", "moment"} <= json.loads(line).keys() for line in lines)
